#include "worker/hub/hub_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/model_folder.h"
#include "common/io/paths.h"

namespace sft::worker {
namespace {

constexpr int64_t kMaxTreeBytes = 64 << 20;
constexpr int64_t kMaxIndexText = 64 << 20;
constexpr size_t kMaxRef = 256;
constexpr char kTag[] =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This file is a cache directory tag created by sft-worker.\n"
    "# For information about cache directory tags, see:\n"
    "#\thttps://bford.info/cachedir/spec.html\n";

const hub::HubFile* Find(const std::vector<hub::HubFile>& files, std::string_view path) {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const hub::HubFile& file) { return file.path == path; });
  return found == files.end() ? nullptr : &*found;
}

// The weight files that an index names.
absl::StatusOr<std::set<std::string>> ShardsOf(std::string_view index_text) {
  const nlohmann::json index = ParseJson(index_text);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object()) {
    return FailedPrecondition(fmt::format("{} has no weight_map", kIndexFile));
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) return FailedPrecondition(fmt::format("{} is broken", kIndexFile));
    names.insert(file.get<std::string>());
  }
  return names;
}

absl::Status Link(const std::string& link, const std::string& target) {
  SFT_RETURN_IF_ERROR(io::MakeDirs(link.substr(0, link.rfind('/'))));
  std::error_code error;
  const auto now = std::filesystem::read_symlink(link, error);
  if (!error && now == target) return absl::OkStatus();
  const std::string made = link + ".sft-link";
  SFT_RETURN_IF_ERROR(io::RemoveAll(made));
  if (symlink(target.c_str(), made.c_str()) != 0) {
    return ErrnoStatus(fmt::format("cannot make the link {}", link), errno);
  }
  return io::RenameDurably(made, link);
}

// "pytorch_model.bin, tf_model.h5": what a repository without safetensors has.
std::string OtherWeights(const std::vector<hub::HubFile>& files) {
  std::string names;
  for (const hub::HubFile& file : files) {
    for (const std::string_view end :
         {".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}) {
      if (!file.path.ends_with(end) || names.size() > 200) continue;
      names += (names.empty() ? "" : ", ") + file.path;
    }
  }
  return names;
}

// A file that a tokenizer could be made of, where it is made of others.
bool IsOtherVocabulary(std::string_view path, const io::TokenizerSource* chosen) {
  const auto is_of = [&](const io::TokenizerSource& source) {
    return path == source.vocabulary || path == source.merges;
  };
  return chosen != nullptr && !is_of(*chosen) &&
         std::any_of(io::kTokenizerSources.begin(), io::kTokenizerSources.end(), is_of);
}

}  // namespace

absl::Status HubCache::Prepare() const {
  SFT_RETURN_IF_ERROR(io::MakeDirs(folder_ + "/blobs"));
  SFT_RETURN_IF_ERROR(io::MakeDirs(hub_dir_ + "/.locks/" + name_));
  const std::string tag = hub_dir_ + "/CACHEDIR.TAG";
  return io::Exists(tag) ? absl::OkStatus() : io::WriteFileAtomic(tag, kTag);
}

absl::Status HubCache::WriteTree(const std::string& commit,
                                 const std::vector<hub::HubFile>& files) const {
  nlohmann::json list = nlohmann::json::object();
  for (const hub::HubFile& file : files) {
    nlohmann::json& entry = list[file.path];
    entry = {{"size", file.size}, {"blob_id", file.blob_id}};
    if (!file.lfs_sha256.empty()) {
      entry["lfs_sha256"] = file.lfs_sha256;
      entry["lfs_size"] = file.size;
    }
    if (!file.xet_hash.empty()) entry["xet_hash"] = file.xet_hash;
  }
  SFT_RETURN_IF_ERROR(io::MakeDirs(folder_ + "/trees"));
  return io::WriteFileAtomic(fmt::format("{}/trees/{}.json", folder_, commit),
                             DumpJson(nlohmann::json{{"format_version", 1}, {"files", list}}, 1));
}

absl::Status HubCache::WriteRef(const std::string& revision, const std::string& commit) const {
  const std::string path = folder_ + "/refs/" + revision;
  SFT_RETURN_IF_ERROR(io::MakeDirs(path.substr(0, path.rfind('/'))));
  return io::WriteFileAtomic(path, commit);
}

std::string CommitOf(const std::string& model_folder, const std::string& revision) {
  if (hub::IsCommit(revision)) return revision;
  if (!io::IsSafeRelative(revision)) return "";
  const absl::StatusOr<std::string> ref = io::ReadFile(model_folder + "/refs/" + revision, kMaxRef);
  if (!ref.ok()) return "";
  const std::string commit = ref->substr(0, ref->find_last_not_of(" \r\n") + 1);
  return io::IsSafeRelative(commit) ? commit : "";
}

absl::Status HubCache::LinkSnapshot(const std::string& commit,
                                    const std::vector<hub::HubFile>& files) const {
  const auto link = [&](const hub::HubFile& file) {
    std::string target = "../../blobs/" + file.etag();
    for (const char c : file.path) target = c == '/' ? "../" + target : target;
    return Link(SnapshotDir(commit) + "/" + file.path, target);
  };
  for (const hub::HubFile& file : files) {
    if (file.path != kConfigFile) SFT_RETURN_IF_ERROR(link(file));
  }
  const hub::HubFile* const config = Find(files, kConfigFile);
  return config == nullptr ? absl::OkStatus() : link(*config);
}

std::optional<std::vector<hub::HubFile>> ReadTree(const std::string& model_folder,
                                                  const std::string& commit) {
  const auto text =
      io::ReadFile(fmt::format("{}/trees/{}.json", model_folder, commit), kMaxTreeBytes);
  if (!text.ok()) return std::nullopt;
  const nlohmann::json tree = ParseJson(*text);
  if (!tree.is_object() || tree.value("format_version", nlohmann::json()) != 1) return std::nullopt;
  const auto list = tree.find("files");
  if (list == tree.end() || !list->is_object()) return std::nullopt;
  std::vector<hub::HubFile> files;
  const auto text_of = [](const nlohmann::json& entry, const char* key) {
    const auto found = entry.find(key);
    return found != entry.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  for (const auto& [path, entry] : list->items()) {
    const auto size = entry.is_object() ? entry.find("size") : entry.end();
    if (!entry.is_object() || size == entry.end() || !size->is_number_integer())
      return std::nullopt;
    files.push_back({path, size->get<int64_t>(), text_of(entry, "blob_id"),
                     text_of(entry, "lfs_sha256"), text_of(entry, "xet_hash")});
  }
  if (!hub::AreSound(files)) return std::nullopt;
  return files;
}

bool NeedsIndex(const std::vector<hub::HubFile>& files) {
  return Find(files, kWeightsFile) == nullptr && Find(files, kIndexFile) != nullptr;
}

absl::StatusOr<std::vector<hub::HubFile>> NeededFiles(const std::vector<hub::HubFile>& files,
                                                      std::string_view index_text) {
  std::vector<hub::HubFile> needed;
  const auto add = [&](std::string_view path) {
    const hub::HubFile* const file = Find(files, path);
    if (file != nullptr) needed.push_back(*file);
    return file != nullptr;
  };
  if (!add(kConfigFile)) {
    return FailedPrecondition("it has no config.json: it is not a model of transformers");
  }
  for (const std::string_view name : io::kModelCompanions) add(name);
  add(io::kModelCard);
  if (add(kWeightsFile)) return needed;
  if (!add(kIndexFile)) {
    const std::string others = OtherWeights(files);
    return FailedPrecondition(fmt::format(
        "it has no safetensors weights{}",
        others.empty() ? "" : " (it has " + others + ", and other formats are never read)"));
  }
  if (index_text.empty()) return needed;
  SFT_ASSIGN_OR_RETURN(const std::set<std::string> shards, ShardsOf(index_text));
  for (const std::string& shard : shards) {
    if (!io::IsSafeRelative(shard) || !shard.ends_with(".safetensors") || !add(shard)) {
      return FailedPrecondition(
          fmt::format("{} names {}, which the model does not have", kIndexFile, shard));
    }
  }
  return needed;
}

std::string MissingOf(const std::string& snapshot_dir) {
  const std::string commit = hub::CommitOfSnapshot(snapshot_dir);
  if (commit.empty()) return "";
  const std::string folder =
      std::filesystem::path(snapshot_dir).parent_path().parent_path().string();
  const auto files = ReadTree(folder, commit);
  if (!files) return "";
  std::string index_text;
  if (NeedsIndex(*files)) {
    index_text =
        io::ReadFile(fmt::format("{}/{}", snapshot_dir, kIndexFile), kMaxIndexText).value_or("");
  }
  auto needed = NeededFiles(*files, index_text);
  if (!needed.ok()) return std::string(Message(needed.status()));
  // No job fails without it.
  std::erase_if(*needed, [](const hub::HubFile& file) { return file.path == io::kModelCard; });
  std::vector<std::string> missing;
  const auto listed = [&](std::string_view path) { return Find(*files, path) != nullptr; };
  for (const hub::HubFile& file : *needed) {
    if (IsOtherVocabulary(file.path, io::FindTokenizer(listed))) continue;
    const auto size = io::FileSize(snapshot_dir + "/" + file.path);
    if (!size.ok()) missing.push_back(file.path);
    if (size.ok() && *size != file.size) {
      missing.push_back(fmt::format("{} ({} of {} bytes)", file.path, *size, file.size));
    }
  }
  if (missing.empty()) return "";
  return fmt::format("its download is not complete: {}{} of {} files that jobs need {} missing",
                     missing.front(),
                     missing.size() == 1 ? "" : fmt::format(" and {} more", missing.size() - 1),
                     needed->size(), missing.size() == 1 ? "is" : "are");
}

}  // namespace sft::worker
