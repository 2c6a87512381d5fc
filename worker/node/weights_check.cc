#include "worker/node/weights_check.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "common/base/json.h"
#include "common/base/mutex.h"
#include "common/base/utf8.h"
#include "common/io/file.h"
#include "common/io/paths.h"
#include "common/io/sha256.h"
#include "common/plan/checkpoint_names.h"
#include "common/plan/model_config.h"
#include "worker/node/safetensors_check.h"

namespace sft::worker {
namespace {

constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxShards = 10'000;
// Tensors of a model beyond which only the sizes of its files are looked at.
constexpr size_t kMaxTensors = 1 << 20;

// What CheckWeightFiles found in a folder, and for which files.
class Findings {
 public:
  std::optional<absl::Status> Find(const std::string& dir, const std::string& files) {
    const MutexLock lock(mutex_);
    const auto found = kept_.find(dir);
    if (found == kept_.end() || found->second.first != files) return std::nullopt;
    return found->second.second;
  }
  void Keep(const std::string& dir, std::string files, absl::Status found) {
    constexpr size_t kMost = 1024;
    const MutexLock lock(mutex_);
    if (kept_.size() >= kMost && !kept_.contains(dir)) kept_.clear();
    kept_[dir] = {std::move(files), std::move(found)};
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::pair<std::string, absl::Status>> kept_ SFT_GUARDED_BY(mutex_);
};

Findings& Kept() {
  static Findings findings;
  return findings;
}

// Files that are the same have the same description. Empty where one cannot be looked at.
std::string Describe(const std::string& dir, const WeightFiles& files, const std::string& config) {
  std::string text = config + files.index_text;
  for (const std::string& name : files.names) {
    struct stat status {};
    if (stat((dir + "/" + name).c_str(), &status) != 0) return "";
    text += fmt::format("\n{} {} {} {} {} {}", name, status.st_dev, status.st_ino, status.st_size,
                        status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  return io::Sha256Hex(text);
}

// Reads a file's header and adds its tensors.
absl::Status AddFile(const std::string& dir, const std::string& file,
                     plan::HeaderTensors& tensors) {
  NamedTensors named;
  const absl::Status checked = CheckSafetensors(dir + "/" + file, &named);
  if (!checked.ok()) return DataLoss(fmt::format("{} {}", file, Message(checked)));
  for (auto& [name, tensor] : named) {
    tensor.file = file;
    const auto [kept, first] = tensors.emplace(name, std::move(tensor));
    if (first) continue;
    return DataLoss(kept->second.file == file
                        ? fmt::format("{}: in the header \"{}\" stands there twice", file, name)
                        : plan::HeldTwice(kept->second.file, file, name));
  }
  return absl::OkStatus();
}

// The tensors that the index names, where it says they are; all where there is none.
absl::Status KeepIndexed(const std::string& index_text, plan::HeaderTensors& tensors) {
  if (index_text.empty()) return absl::OkStatus();
  const auto index = ParseJson(index_text);
  plan::HeaderTensors indexed;
  for (const auto& [name, shard] : index.at("weight_map").items()) {
    const auto found = tensors.find(name);
    if (found == tensors.end() || found->second.file != shard.get<std::string>()) {
      return DataLoss(plan::NotInItsShard(kWeightsIndex, name, shard.get<std::string>()));
    }
    indexed.insert(*found);
  }
  tensors = std::move(indexed);
  return absl::OkStatus();
}

absl::Status Compare(const std::string& dir, const WeightFiles& files, const std::string& config) {
  plan::HeaderTensors tensors;
  bool too_many = false;
  for (const std::string& file : files.names) {
    SFT_RETURN_IF_ERROR(AddFile(dir, file, tensors));
    if (tensors.size() <= kMaxTensors) continue;
    too_many = true;
    tensors.clear();
  }
  const absl::StatusOr<plan::ModelConfig> model = plan::ParseModelConfig(config);
  // Whoever submits a job for a family that is not supported is told why.
  if (too_many || !model.ok()) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(KeepIndexed(files.index_text, tensors));
  const std::string problem = plan::FindContradiction(*model, tensors);
  return problem.empty() ? absl::OkStatus() : DataLoss(problem);
}

}  // namespace

absl::StatusOr<WeightFiles> FindWeightFiles(const std::string& dir) {
  if (io::Exists(dir + "/" + kSingleWeights)) return WeightFiles{{kSingleWeights}, ""};
  if (!io::Exists(dir + "/" + kWeightsIndex)) {
    return NotFound("there are no safetensors weights (other formats are never read)");
  }
  WeightFiles files;
  SFT_ASSIGN_OR_RETURN(files.index_text, io::ReadFile(dir + "/" + kWeightsIndex, kMaxIndexBytes));
  const auto index = ParseJson(files.index_text);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object() || map->empty()) {
    return DataLoss(fmt::format("{} has no weight_map", kWeightsIndex));
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !io::IsSafeRelative(file.get<std::string>())) {
      return DataLoss(fmt::format("{} names a file that it may not", kWeightsIndex));
    }
    names.insert(file.get<std::string>());
    if (names.size() > kMaxShards) {
      return DataLoss(fmt::format("{} names more than {} files", kWeightsIndex, kMaxShards));
    }
  }
  files.names.assign(names.begin(), names.end());
  return files;
}

absl::Status CheckWeightFiles(const std::string& dir, const WeightFiles& files,
                              const std::string& config) {
  std::string description = Describe(dir, files, config);
  if (std::optional<absl::Status> found = Kept().Find(dir, description)) return *found;
  absl::Status found = Compare(dir, files, config);
  if (!description.empty()) Kept().Keep(dir, std::move(description), found);
  return found;
}

}  // namespace sft::worker
