#include <algorithm>
#include <string>
#include <vector>

#include "common/spec/draft.h"
#include "common/spec/mixture.h"

// data.packing where the job does not say: on for raw documents, which have any length. What is in
// a folder is not known here: sftctl looks, and says data.packing = true.

namespace sft::spec {
namespace {

constexpr std::string_view kPackingKey = "data.packing", kDataKey = "job.data",
                           kMixtureKey = "data.mixture", kLossKey = "training.loss";

// Whether a file is one document, by its name (common/data/row_reader.h).
bool IsTextFile(std::string name) {
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  for (const std::string_view packed : {".gz", ".zst", ".bz2", ".xz"}) {
    if (!name.ends_with(packed)) continue;
    name.resize(name.size() - packed.size());
    break;
  }
  return name.ends_with(".txt") || name.ends_with(".md");
}

// The files with training rows, as the job names them.
std::vector<std::string> TrainingFilesOf(const Draft& draft) {
  std::vector<std::string> files;
  for (const std::string& item : ListOf(draft, kMixtureKey)) {
    if (const absl::StatusOr<TrainPart> part = ParseTrainPart(item); part.ok()) {
      files.push_back(part->path);
    }
  }
  if (files.empty() && draft.Has(kDataKey)) files.push_back(draft.String(kDataKey));
  return files;
}

}  // namespace

void ResolvePacking(Draft* draft) {
  // A job that was taken in before this rule goes on as it began.
  if (draft->taken_before() || draft->Has(kPackingKey)) return;
  if (draft->Faulty({kPackingKey, kDataKey, kMixtureKey, kLossKey})) return;
  if (draft->Has(kLossKey) && draft->String(kLossKey) != "sft") return;
  const std::vector<std::string> files = TrainingFilesOf(*draft);
  if (files.empty() || !std::ranges::all_of(files, IsTextFile)) return;
  draft->Derive(kPackingKey, true, "the files are raw documents");
}

}  // namespace sft::spec
