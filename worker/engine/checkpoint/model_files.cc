#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/is_there.h"
#include "common/plan/checkpoint_names.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/safetensors.h"

namespace sft::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

[[noreturn]] void NoWeights(const fs::path& dir) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, error)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".bin" || extension == ".pt" || extension == ".pth") {
      throw UserError(
          fmt::format("{} holds pickled weights ({}), which are never read: they can run code",
                      dir.string(), entry.path().filename().string()),
          "pickled_weights", "Convert the model to safetensors (save_pretrained of transformers).");
    }
  }
  throw UserError(fmt::format("{} has neither {} nor {}", dir.string(), kSingle, kIndex),
                  "no_weights", "Give the directory of a Hugging Face model with its weights.");
}

bool Exists(const fs::path& path) {
  const absl::StatusOr<bool> there = io::IsThere(path.string());
  if (there.ok()) return *there;
  throw UserError(std::string(Message(there.status())), "file_not_readable",
                  "Check where links lead, and the modes of the folders.");
}

// Tensor name -> shard file name.
std::map<std::string, std::string> ReadIndex(const fs::path& path) {
  const auto text = io::ReadFile(path.string(), int64_t{1} << 28);
  if (!text.ok()) {
    throw UserError(std::string(Message(text.status())), "file_not_readable");
  }
  JsonProblem problem;
  const json index = ParseJson(*text, {.keys_once = true}, &problem);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  const char* advice = "Fetch the file again.";
  if (index.is_discarded() && problem.kind == JsonProblem::kTwice) {
    throw UserError(fmt::format("{}: {}", path.string(), problem.text), "doubled_tensor", advice);
  }
  if (index.is_discarded() || !index.is_object() || map == index.end() || !map->is_object()) {
    throw UserError(fmt::format("{} is not JSON with an object \"weight_map\"", path.string()),
                    "broken_index", advice);
  }
  std::map<std::string, std::string> result;
  for (const auto& [name, shard] : map->items()) {
    // A shard is a plain name: an index must not lead out of its directory.
    if (!shard.is_string() || shard.get_ref<const std::string&>().empty() ||
        fs::path(shard.get<std::string>()).filename() != shard.get<std::string>()) {
      throw UserError(
          fmt::format("{}: the shard of \"{}\" is not a file name", path.string(), name),
          "broken_index", advice);
    }
    result.emplace(name, shard.get<std::string>());
  }
  if (result.empty()) {
    throw UserError(fmt::format("{} lists no tensors", path.string()), "broken_index", advice);
  }
  return result;
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t next = std::min({row[j + 1] + 1, row[j] + 1, diagonal + (a[i] != b[j])});
      diagonal = row[j + 1];
      row[j + 1] = next;
    }
  }
  return row.back();
}

}  // namespace

ModelFiles ModelFiles::Open(const fs::path& dir) {
  if (!Exists(dir) || !fs::is_directory(dir)) {
    throw UserError(fmt::format("the model directory {} does not exist on this node", dir.string()),
                    "no_model", "Check job.model and the folders that the worker was given.");
  }
  ModelFiles result;
  result.dir_ = dir;
  if (Exists(dir / kSingle)) {
    result.files_.push_back(SafetensorsFile::Open(dir / kSingle));
    for (const auto& [name, info] : result.files_[0]->tensors()) result.place_.emplace(name, 0);
    return result;
  }
  if (!Exists(dir / kIndex)) NoWeights(dir);
  const auto index = ReadIndex(dir / kIndex);
  std::set<std::string> shards;
  for (const auto& [name, shard] : index) shards.insert(shard);
  std::map<std::string, size_t> numbers;
  for (const std::string& shard : shards) {
    if (!Exists(dir / shard)) {
      throw UserError(fmt::format("{} is missing: {} lists {} shards", (dir / shard).string(),
                                  kIndex, shards.size()),
                      "missing_shard", "Fetch the model again, or the missing file alone.");
    }
    numbers.emplace(shard, result.files_.size());
    result.files_.push_back(SafetensorsFile::Open(dir / shard));
  }
  result.CheckOnce();
  for (const auto& [name, shard] : index) {
    const size_t number = numbers.at(shard);
    if (!result.files_[number]->Contains(name)) {
      throw UserError(plan::NotInItsShard((dir / kIndex).string(), name, shard), "broken_index",
                      "Index and shards are of different models: fetch them again.");
    }
    result.place_.emplace(name, number);
  }
  return result;
}

void ModelFiles::CheckOnce() const {
  std::map<std::string_view, const SafetensorsFile*> holders;
  for (const auto& file : files_) {
    for (const auto& [name, info] : file->tensors()) {
      const auto [holder, first] = holders.emplace(name, file.get());
      if (first) continue;
      throw UserError(
          plan::HeldTwice(holder->second->path().string(), file->path().filename().string(), name),
          "doubled_tensor",
          "The shards are not of one checkpoint: fetch the model into an empty folder.");
    }
  }
}

std::vector<std::string> ModelFiles::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : place_) names.push_back(name);
  return names;
}

uint64_t ModelFiles::TotalBytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, place] : place_) bytes += files_[place]->Info(name).bytes();
  return bytes;
}

const SafetensorsFile& ModelFiles::File(std::string_view name) const {
  const auto found = place_.find(name);
  if (found != place_.end()) return *files_[found->second];
  const auto nearest =
      std::min_element(place_.begin(), place_.end(), [&](const auto& a, const auto& b) {
        return EditDistance(a.first, name) < EditDistance(b.first, name);
      });
  throw UserError(fmt::format("the model in {} has no tensor \"{}\"; the nearest name is \"{}\"",
                              dir_.string(), name, nearest == place_.end() ? "" : nearest->first),
                  "missing_tensor",
                  "The weights do not belong to this config.json, or the model family is not "
                  "supported.");
}

}  // namespace sft::engine
