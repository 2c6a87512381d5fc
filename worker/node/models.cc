#include "worker/node/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/hub/model_name.h"
#include "common/io/file.h"
#include "common/io/model_folder.h"
#include "common/io/paths.h"
#include "common/io/sha256.h"
#include "worker/hub/hub_cache.h"
#include "worker/node/weights_check.h"

namespace sft::worker {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxConfigBytes = 256 << 10;
// Of the folders searched for models.
constexpr int64_t kMaxEntries = 10'000;

constexpr char kConfig[] = "config.json";
// Prefix of a model's folder in a hub cache, "models--org--name".
constexpr std::string_view kHubPrefix = "models--";

// OK for a regular file below the roots, or one that does not exist but would be.
absl::Status CheckFile(const std::string& path, const std::vector<std::string>& roots) {
  std::error_code error;
  if (fs::symlink_status(path, error).type() == fs::file_type::not_found) return absl::OkStatus();
  const absl::StatusOr<std::string> real = io::ResolveBelow(path, roots);
  if (absl::IsPermissionDenied(real.status())) {
    return PermissionDenied(
        fmt::format("{}; where it leads to what may be read, give that folder to the worker as "
                    "another --models "
                    "or --data-root",
                    Message(real.status())));
  }
  SFT_RETURN_IF_ERROR(real.status());
  return io::CheckRegularFile(*real);
}

absl::Status CheckWeights(const std::string& dir, const std::vector<std::string>& roots,
                          v1::Model& model, std::string& index_text) {
  SFT_ASSIGN_OR_RETURN(const WeightFiles files, FindWeightFiles(dir));
  index_text = files.index_text;
  int64_t bytes = 0;
  for (const std::string& file : files.names) {
    const std::string path = dir + "/" + file;
    SFT_RETURN_IF_ERROR(CheckFile(path, roots));
    if (!io::Exists(path)) return NotFound(file + " is missing");
    SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(path));
    bytes += size;
  }
  SFT_RETURN_IF_ERROR(CheckWeightFiles(dir, files, model.config_json()));
  model.set_bytes(bytes);
  return absl::OkStatus();
}

std::string LastPart(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// The snapshot of a hub cache's model folder that "main" refers to, or the only one; with a
// revision, the one that it refers to.
std::string Snapshot(const std::string& model_dir, const std::string& revision = "") {
  if (!revision.empty()) {
    const std::string commit = CommitOf(model_dir, revision);
    const std::string dir = model_dir + "/snapshots/" + commit;
    return !commit.empty() && io::IsDirectory(dir) ? dir : "";
  }
  const std::string main = CommitOf(model_dir, "main");
  if (!main.empty() && io::IsDirectory(model_dir + "/snapshots/" + main)) {
    return model_dir + "/snapshots/" + main;
  }
  const auto names = io::ListDir(model_dir + "/snapshots", 2);
  return names.ok() && names->size() == 1 ? model_dir + "/snapshots/" + names->front() : "";
}

// Turns a hub cache's folder "models--org--name" into "org/name".
std::string HubId(const std::string& name) {
  std::string id = name.substr(kHubPrefix.size());
  if (const size_t at = id.find("--"); at != std::string::npos) id.replace(at, 2, "/");
  return id;
}

// The hub cache's model folder of which `dir` is a snapshot; empty if it is not one.
std::string HubModelOf(const std::string& dir) {
  const fs::path snapshots = fs::path(dir).parent_path();
  const fs::path model = snapshots.parent_path();
  const bool is_one =
      snapshots.filename() == "snapshots" && model.filename().string().starts_with(kHubPrefix);
  return is_one ? model.string() : "";
}

// The id of a model folder that the operator named.
std::string ModelIdOf(const std::string& dir) {
  const std::string model = HubModelOf(dir);
  return model.empty() ? LastPart(dir) : HubId(LastPart(model));
}

// The folders in which a model's folder and its files may really lie: links are resolved once, and
// a path that leads out of these folders is refused, by id as well as by path.
std::vector<std::string> ModelRoots(const NodeSetup& setup) {
  std::vector<std::string> roots = setup.roots;
  roots.insert(roots.end(), setup.model_dirs.begin(), setup.model_dirs.end());
  roots.insert(roots.end(), setup.hub_dirs.begin(), setup.hub_dirs.end());
  // The files of a hub cache's snapshot lie beside it.
  for (const std::string& dir : setup.model_dirs) {
    std::error_code error;
    const std::string model = HubModelOf(fs::canonical(dir, error).string());
    if (!error && !model.empty()) roots.push_back(model + "/blobs");
  }
  return roots;
}

absl::Status CheckFiles(const std::string& dir, const std::vector<std::string>& roots) {
  SFT_RETURN_IF_ERROR(io::ResolveBelow(dir, roots).status());
  for (const std::string_view name : {std::string_view(kConfig), std::string_view(kSingleWeights),
                                      std::string_view(kWeightsIndex)}) {
    SFT_RETURN_IF_ERROR(CheckFile(fmt::format("{}/{}", dir, name), roots));
  }
  for (const std::string_view name : io::kModelCompanions) {
    SFT_RETURN_IF_ERROR(CheckFile(fmt::format("{}/{}", dir, name), roots));
  }
  return absl::OkStatus();
}

bool HoldsModel(const std::string& dir) { return !dir.empty() && io::Exists(dir + "/config.json"); }

class Lister {
 public:
  explicit Lister(const NodeSetup& setup) : setup_(setup) {}

  // The models below a model folder, two levels deep.
  void AddFolder(const std::string& dir) {
    if (HoldsModel(dir)) return Add(dir, ModelIdOf(dir));
    if (LastPart(dir).starts_with(kHubPrefix)) return AddHubModel(dir);
    left_ = kMaxEntries;
    for (const std::string& name : Names(dir)) {
      const std::string child = dir + "/" + name;
      if (HoldsModel(child)) {
        Add(child, name);
        continue;
      }
      if (name.starts_with(kHubPrefix)) continue;
      for (const std::string& inner : Names(child)) {
        if (HoldsModel(child + "/" + inner)) Add(child + "/" + inner, name + "/" + inner);
      }
    }
    TellIfTooMany(dir);
  }
  void AddHub(const std::string& dir) {
    left_ = kMaxEntries;
    for (const std::string& name : Names(dir)) {
      if (name.starts_with(kHubPrefix)) AddHubModel(dir + "/" + name);
    }
    TellIfTooMany(dir);
  }
  std::vector<v1::Model> Take() {
    if (surplus_ > 0) TellOfSurplus();
    return std::move(models_);
  }

 private:
  void Add(const std::string& dir, const std::string& id) {
    if (!seen_.insert(id).second) return ReplaceBroken(dir, id);
    if (models_.size() < kMaxModels) return models_.push_back(InspectModel(dir, id, setup_));
    if (surplus_++ == 0) first_surplus_ = dir;
  }
  // Jobs get the first copy that they can use.
  void ReplaceBroken(const std::string& dir, const std::string& id) {
    const auto known = std::find_if(models_.begin(), models_.end(), [&](const v1::Model& model) {
      return model.id() == id && !model.problem().empty();
    });
    if (known == models_.end()) return;
    v1::Model model = InspectModel(dir, id, setup_);
    if (model.problem().empty()) *known = std::move(model);
  }
  void TellOfSurplus() {
    v1::Model& model = models_.emplace_back();
    model.set_id(fmt::format("{} more", surplus_));
    model.set_path(ToUtf8(first_surplus_));
    model.set_problem(
        fmt::format("a node offers {} models at most, and this is the first of {} more that no job "
                    "can name by id: give the folders of those that jobs use as --models",
                    kMaxModels, surplus_));
  }
  // The snapshot that the id alone means, then others by their commits.
  void AddHubModel(const std::string& dir) {
    const std::string id = HubId(LastPart(dir));
    const std::string main = Snapshot(dir);
    if (!main.empty() && HoldsModel(main)) Add(main, id);
    for (const std::string& commit : Names(dir + "/snapshots")) {
      const std::string snapshot = dir + "/snapshots/" + commit;
      if (snapshot != main && HoldsModel(snapshot)) Add(snapshot, id + "@" + commit);
    }
  }
  std::vector<std::string> Names(const std::string& dir) {
    if (left_ < 0 || !io::IsDirectory(dir)) return {};
    const auto most = static_cast<size_t>(left_);
    auto names = io::ListDir(dir, most + 1).value_or(std::vector<std::string>{});
    left_ -= static_cast<int64_t>(names.size());
    if (names.size() > most) names.pop_back();
    return names;
  }
  void TellIfTooMany(const std::string& dir) {
    if (left_ >= 0 || models_.size() >= kMaxModels || !seen_.insert(LastPart(dir)).second) return;
    v1::Model& model = models_.emplace_back();
    model.set_id(ToUtf8(LastPart(dir)));
    model.set_path(ToUtf8(dir));
    model.set_problem(
        fmt::format("there are more than {} entries in it and its folders, and no more were looked "
                    "at: give the "
                    "folders of models, or what holds them alone, as --models",
                    kMaxEntries));
  }

  const NodeSetup& setup_;
  std::vector<v1::Model> models_;
  std::set<std::string> seen_;
  int64_t surplus_ = 0;        // models beyond kMaxModels
  std::string first_surplus_;  // the folder of the first of them
  int64_t left_ = 0;           // entries that may still be visited; negative: there were more
};

// Folders that are searched for an id as hub caches: model folders may be such caches too.
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
  const auto named = hub::ParseModelName(id);
  const std::string folder = hub::CacheFolderOf(named ? named->id : id);
  const std::string revision = named ? named->revision : "";
  std::vector<std::string> copies;
  const auto look = [&](const std::string& dir) {
    // config.json is the last that a download brings.
    if (HoldsModel(dir)) copies.push_back(dir);
  };
  for (const std::string& dir : setup.model_dirs) {
    look(dir + "/" + id);
    if (ModelIdOf(dir) == id || LastPart(dir) == id) look(dir);
    if (LastPart(dir) == folder) look(Snapshot(dir, revision));
  }
  const std::vector<std::string> hubs = HubDirs(setup);
  for (const std::string& dir : hubs) look(Snapshot(dir + "/" + folder, revision));
  // The first that jobs can use; where there is none, the first says what is wrong.
  for (const std::string& dir : copies) {
    if (copies.size() == 1 || InspectModel(dir, id, setup).problem().empty()) return dir;
  }
  if (!copies.empty()) return copies.front();
  return NotFound(
      fmt::format("node {} has no model \"{}\" in {}; `sftctl models` lists what the nodes "
                  "have, or give the model's folder as an absolute path",
                  setup.node, id, fmt::join(hubs, ", ")));
}

}  // namespace

v1::Model InspectModel(const std::string& dir, const std::string& id, const NodeSetup& setup) {
  v1::Model model;
  // A message with bytes that are not UTF-8 could not be sent.
  model.set_id(ToUtf8(id));
  model.set_path(ToUtf8(dir));
  if (!IsUtf8(dir)) {
    model.set_problem("its folder's name is not UTF-8");
    return model;
  }
  const std::vector<std::string> roots = ModelRoots(setup);
  if (const absl::Status files = CheckFiles(dir, roots); !files.ok()) {
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
  const absl::Status weights = CheckWeights(dir, roots, model, index_text);
  const std::string missing = MissingOf(dir);
  if (!missing.empty()) {
    model.set_problem(ToUtf8(missing));
  } else if (!weights.ok()) {
    model.set_problem(ToUtf8(Message(weights)));
  } else if (io::FindTokenizer([&dir](std::string_view name) {
               return io::Exists(fmt::format("{}/{}", dir, name));
             }) == nullptr) {
    model.set_problem(std::string(io::kNoTokenizer));
  }
  model.set_hash(io::Sha256Hex(*config + index_text));
  return model;
}

std::vector<v1::Model> ListModels(const NodeSetup& setup) {
  const RankRights rights(setup.rank_user);  // a model that ranks cannot read is useless
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
