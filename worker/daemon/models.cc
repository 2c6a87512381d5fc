#include "worker/daemon/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/io/file.h"
#include "common/io/paths.h"
#include "common/io/sha256.h"
#include "worker/daemon/safetensors_check.h"

namespace sft::worker {
namespace {

constexpr int64_t kMaxConfigBytes = 256 << 10;
constexpr int64_t kMaxIndexBytes = 64 << 20;

constexpr char kIndex[] = "model.safetensors.index.json";

// The weight files of a folder, from the index if there is one.
absl::StatusOr<std::vector<std::string>> WeightFiles(const std::string& dir,
                                                     std::string& index_text) {
  if (io::Exists(dir + "/" + kIndex)) {
    SFT_ASSIGN_OR_RETURN(index_text, io::ReadFile(dir + "/" + kIndex, kMaxIndexBytes));
    const auto index = ParseJson(index_text);
    const auto map = index.is_object() ? index.find("weight_map") : index.end();
    if (map == index.end() || !map->is_object() || map->empty()) {
      return DataLoss(fmt::format("{} has no weight_map", kIndex));
    }
    std::set<std::string> names;
    for (const auto& [tensor, file] : map->items()) {
      if (!file.is_string() || !io::IsSafeRelative(file.get<std::string>())) {
        return DataLoss(fmt::format("{} names a file that it may not", kIndex));
      }
      names.insert(file.get<std::string>());
    }
    return std::vector<std::string>(names.begin(), names.end());
  }
  if (io::Exists(dir + "/model.safetensors")) return std::vector<std::string>{"model.safetensors"};
  return NotFound("there are no safetensors weights (other formats are never read)");
}

absl::Status CheckWeights(const std::string& dir, v1::Model& model, std::string& index_text) {
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> files, WeightFiles(dir, index_text));
  int64_t bytes = 0;
  for (const std::string& file : files) {
    const std::string path = dir + "/" + file;
    if (!io::Exists(path)) return NotFound(file + " is missing");
    const absl::Status checked = CheckSafetensors(path);
    if (!checked.ok()) return DataLoss(fmt::format("{} {}", file, Message(checked)));
    SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(path));
    bytes += size;
  }
  model.set_bytes(bytes);
  return absl::OkStatus();
}

// The snapshot of a hub cache's model folder that "main" stands for, or the only one.
std::string Snapshot(const std::string& model_dir) {
  const absl::StatusOr<std::string> ref = io::ReadFile(model_dir + "/refs/main", 256);
  if (ref.ok()) {
    const std::string name = ref->substr(0, ref->find_last_not_of(" \r\n") + 1);
    if (io::IsSafeRelative(name) && io::IsDirectory(model_dir + "/snapshots/" + name)) {
      return model_dir + "/snapshots/" + name;
    }
  }
  const auto names = io::ListDir(model_dir + "/snapshots");
  return names.ok() && names->size() == 1 ? model_dir + "/snapshots/" + names->front() : "";
}

std::string HubName(std::string id) {
  for (size_t at = 0; (at = id.find('/', at)) != std::string::npos;) id.replace(at, 1, "--");
  return "models--" + id;
}

// Where a model's folder and each of its files may really be: links are resolved once, and what
// leads out of these folders is refused, by its id as by its path.
std::vector<std::string> ModelRoots(const NodeSetup& setup) {
  std::vector<std::string> roots = setup.roots;
  roots.insert(roots.end(), setup.model_dirs.begin(), setup.model_dirs.end());
  roots.insert(roots.end(), setup.hub_dirs.begin(), setup.hub_dirs.end());
  return roots;
}

// What ranks read of a folder, or would if it were there, is a regular file below the roots.
absl::Status CheckFiles(const std::string& dir, const NodeSetup& setup) {
  const std::vector<std::string> roots = ModelRoots(setup);
  SFT_RETURN_IF_ERROR(io::ResolveBelow(dir, roots).status());
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(dir));
  for (const std::string& name : names) {
    const std::string path = dir + "/" + name;
    if (io::IsDirectory(path)) continue;
    SFT_ASSIGN_OR_RETURN(const std::string real, io::ResolveBelow(path, roots));
    SFT_RETURN_IF_ERROR(io::CheckRegularFile(real));
  }
  return absl::OkStatus();
}

bool HoldsModel(const std::string& dir) { return io::Exists(dir + "/config.json"); }

class Lister {
 public:
  explicit Lister(const NodeSetup& setup) : setup_(setup) {}
  void Add(const std::string& dir, const std::string& id) {
    if (models_.size() < kMaxModels && seen_.insert(id).second)
      models_.push_back(InspectModel(dir, id, setup_));
  }
  void AddFolder(const std::string& dir) {
    if (HoldsModel(dir)) return Add(dir, dir.substr(dir.rfind('/') + 1));
    for (const std::string& name : Names(dir)) {
      const std::string child = dir + "/" + name;
      if (HoldsModel(child)) {
        Add(child, name);
        continue;
      }
      if (name.starts_with("models--")) continue;
      for (const std::string& inner : Names(child)) {
        if (HoldsModel(child + "/" + inner)) Add(child + "/" + inner, name + "/" + inner);
      }
    }
  }
  void AddHub(const std::string& dir) {
    for (const std::string& name : Names(dir)) {
      if (!name.starts_with("models--")) continue;
      std::string id = name.substr(8);
      if (const size_t at = id.find("--"); at != std::string::npos) id.replace(at, 2, "/");
      const std::string snapshot = Snapshot(dir + "/" + name);
      if (!snapshot.empty() && HoldsModel(snapshot)) Add(snapshot, id);
    }
  }
  std::vector<v1::Model> Take() { return std::move(models_); }

 private:
  static std::vector<std::string> Names(const std::string& dir) {
    if (!io::IsDirectory(dir)) return {};
    return io::ListDir(dir).value_or(std::vector<std::string>{});
  }

  const NodeSetup& setup_;
  std::vector<v1::Model> models_;
  std::set<std::string> seen_;
};

// Folders in which an id is looked up as a hub cache: the model folders may be one too.
std::vector<std::string> HubDirs(const NodeSetup& setup) {
  std::vector<std::string> dirs = setup.model_dirs;
  dirs.insert(dirs.end(), setup.hub_dirs.begin(), setup.hub_dirs.end());
  return dirs;
}

absl::StatusOr<std::string> FindById(const std::string& id, const NodeSetup& setup) {
  if (!io::IsSafeRelative(id)) {
    return InvalidArgument(
        fmt::format("model \"{}\" is neither an absolute path nor a model's id", id));
  }
  for (const std::string& dir : setup.model_dirs) {
    if (HoldsModel(dir + "/" + id)) return dir + "/" + id;
    if (HoldsModel(dir) && dir.substr(dir.rfind('/') + 1) == id) return dir;
  }
  const std::vector<std::string> hubs = HubDirs(setup);
  for (const std::string& dir : hubs) {
    const std::string snapshot = Snapshot(dir + "/" + HubName(id));
    if (!snapshot.empty()) return snapshot;
  }
  return NotFound(
      fmt::format("node {} has no model \"{}\" in {}; `sftctl models` lists what the nodes "
                  "have, or give the model's folder as an absolute path",
                  setup.node, id, fmt::join(hubs, ", ")));
}

}  // namespace

v1::Model InspectModel(const std::string& dir, const std::string& id, const NodeSetup& setup) {
  v1::Model model;
  model.set_id(id);
  model.set_path(dir);
  if (const absl::Status files = CheckFiles(dir, setup); !files.ok()) {
    model.set_problem(ToUtf8(Message(files)));
    return model;
  }
  const absl::StatusOr<std::string> config = io::ReadFile(dir + "/config.json", kMaxConfigBytes);
  if (!config.ok()) {
    model.set_problem(absl::IsNotFound(config.status()) ? "config.json is missing"
                                                        : std::string(Message(config.status())));
    return model;
  }
  if (!ParseJson(*config).is_object()) {
    model.set_problem("config.json is not a JSON object");
    return model;
  }
  model.set_config_json(*config);
  std::string index_text;
  const absl::Status weights = CheckWeights(dir, model, index_text);
  if (!weights.ok()) {
    model.set_problem(std::string(Message(weights)));
  } else if (!io::Exists(dir + "/tokenizer.json")) {
    model.set_problem("tokenizer.json is missing");
  }
  model.set_hash(io::Sha256Hex(*config + index_text));
  return model;
}

std::vector<v1::Model> ListModels(const NodeSetup& setup) {
  Lister lister(setup);
  for (const std::string& dir : setup.model_dirs) lister.AddFolder(dir);
  for (const std::string& dir : HubDirs(setup)) lister.AddHub(dir);
  return lister.Take();
}

absl::StatusOr<std::string> ResolveModel(const std::string& name, const NodeSetup& setup) {
  std::string dir;
  if (name.starts_with("/")) {
    SFT_ASSIGN_OR_RETURN(dir, io::ResolveBelow(name, setup.roots));
    if (!io::IsDirectory(dir))
      return InvalidArgument(fmt::format("model {} is not a folder", name));
  } else {
    SFT_ASSIGN_OR_RETURN(dir, FindById(name, setup));
  }
  const v1::Model model = InspectModel(dir, name, setup);
  if (!model.problem().empty()) {
    return InvalidArgument(fmt::format("model {} on node {} cannot be used: {} (in {})", name,
                                       setup.node, model.problem(), dir));
  }
  return dir;
}

}  // namespace sft::worker
