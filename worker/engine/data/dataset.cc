#include "worker/engine/data/dataset.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>

#include "worker/engine/base/error.h"
#include "worker/engine/data/cache_file.h"
#include "worker/engine/data/files.h"

namespace sft::engine {

// What the views point into: a mapped file, or documents in memory.
class Dataset::Storage {
 public:
  std::optional<MappedFile> file;
  CacheContents memory;
};

class Dataset::Token {};

const char* RowProblemName(RowProblem problem) {
  switch (problem) {
    case RowProblem::kNotJson:
      return "not JSON";
    case RowProblem::kBadForm:
      return "wrong form";
    case RowProblem::kNoAnswer:
      return "no answer";
    case RowProblem::kControlToken:
      return "control token in the text";
    case RowProblem::kTemplate:
      return "chat template";
    case RowProblem::kTooLong:
      return "too long";
    case RowProblem::kSameAnswers:
      return "two equal answers";
  }
  return "unknown";
}

int64_t DatasetStats::skipped_total() const {
  return std::accumulate(std::begin(skipped), std::end(skipped), int64_t{0});
}

Dataset::Dataset(const Token&) : storage_(std::make_unique<Storage>()) {}
Dataset::~Dataset() = default;

void Dataset::Adopt(const CacheView& view) {
  offsets_ = view.offsets;
  lines_ = view.lines;
  loss_counts_ = view.loss_counts;
  tokens_ = view.tokens;
  loss_ = view.loss;
  stats_ = view.stats;
}

std::shared_ptr<const Dataset> Dataset::Open(const std::filesystem::path& file,
                                             std::string_view key) {
  const auto dataset = std::make_shared<Dataset>(Token());
  dataset->storage_->file = MappedFile::Open(file);
  dataset->Adopt(ReadCacheFile(dataset->storage_->file->bytes(), key, file.string()));
  return dataset;
}

std::shared_ptr<const Dataset> Dataset::FromDocuments(
    const std::vector<std::vector<int32_t>>& tokens,
    const std::vector<std::vector<uint8_t>>& loss) {
  if (tokens.size() != loss.size()) throw InternalError("documents without their loss masks");
  const auto dataset = std::make_shared<Dataset>(Token());
  CacheContents& memory = dataset->storage_->memory;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].size() != loss[i].size()) throw InternalError("a loss mask of another length");
    std::vector<uint8_t> mask = loss[i];
    if (!mask.empty()) mask[0] = 0;
    memory.Add(tokens[i], mask, static_cast<int64_t>(i) + 1);
  }
  memory.stats.rows = memory.stats.used = memory.stats.documents;
  dataset->Adopt(memory.View());
  return dataset;
}

std::shared_ptr<const Dataset> Dataset::Join(std::vector<Part> parts) {
  if (parts.empty()) throw InternalError("a data set of no parts");
  const auto joined = std::make_shared<Dataset>(Token());
  int64_t begin = 0;
  for (Part& part : parts) {
    part.begin = begin;
    begin += part.rows->size();
    const DatasetStats& stats = part.rows->stats();
    joined->stats_.rows += stats.rows;
    joined->stats_.used += stats.used;
    joined->stats_.documents += stats.documents;
    joined->stats_.tokens += stats.tokens;
    joined->stats_.loss_tokens += stats.loss_tokens;
    joined->stats_.longest = std::max(joined->stats_.longest, stats.longest);
  }
  joined->parts_ = std::move(parts);
  return joined;
}

const Dataset::Part& Dataset::PartOf(int64_t index) const {
  return *std::prev(std::ranges::upper_bound(parts_, index, {}, &Part::begin));
}

Document Dataset::Get(int64_t index) const {
  if (!parts_.empty()) {
    const Part& part = PartOf(index);
    return part.rows->Get(index - part.begin);
  }
  const auto i = static_cast<size_t>(index);
  const uint64_t begin = offsets_[i];
  const uint64_t size = offsets_[i + 1] - begin;
  return {.tokens = tokens_.subspan(begin, size),
          .loss = loss_.subspan(begin, size),
          .line = static_cast<int64_t>(lines_[i])};
}

int64_t Dataset::Length(int64_t index) const {
  if (!parts_.empty()) {
    const Part& part = PartOf(index);
    return part.rows->Length(index - part.begin);
  }
  const auto i = static_cast<size_t>(index);
  return static_cast<int64_t>(offsets_[i + 1] - offsets_[i]);
}

int64_t Dataset::LossTokens(int64_t index) const {
  if (!parts_.empty()) {
    const Part& part = PartOf(index);
    return part.rows->LossTokens(index - part.begin);
  }
  return loss_counts_[static_cast<size_t>(index)];
}

}  // namespace sft::engine
