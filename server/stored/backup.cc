#include "server/stored/backup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/bytes.h"
#include "common/base/duration.h"
#include "common/base/json.h"
#include "common/base/version.h"
#include "common/io/disk_space.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "server/blob/blob_store.h"
#include "server/database/data_dir_lock.h"
#include "server/database/migrations.h"
#include "server/database/online_copy.h"
#include "server/state/records.h"
#include "server/store/tallies.h"
#include "server/stored/file_copies.h"

namespace sft::server {
namespace {

namespace fs = std::filesystem;

constexpr char kDatabase[] = "/server.db";
constexpr int64_t kPageBytes = 4096;
constexpr char kManifest[] = "/manifest.json";
// Folders of a data folder.
constexpr char kBlobs[] = "/blobs", kCheckpoints[] = "/checkpoints", kKeys[] = "/tls",
               kHookSecrets[] = "/webhooks";
constexpr const char* kGrowing[] = {"/logs", "/metrics"};

// "2026-01-31T12-34-56Z"
std::string FolderName(WallTime now) {
  std::string name = FormatUtc(now).substr(0, 19) + "Z";
  std::replace(name.begin(), name.end(), ':', '-');
  return name;
}

std::string BlobPath(const std::string& data_dir, const std::string& store,
                     const std::string& sha256) {
  return BlobStore::PathIn(data_dir + store, sha256);
}

// Hashes and sizes of all complete blobs.
absl::StatusOr<nlohmann::json> ListBlobs(const std::string& data_dir) {
  nlohmann::json blobs = nlohmann::json::array();
  const std::string root = data_dir + kBlobs;
  if (!io::IsDirectory(root)) return blobs;
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> folders, io::ListDir(root));
  for (const std::string& folder : folders) {
    if (folder.size() != 2) continue;
    SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(root + "/" + folder));
    for (const std::string& name : names) {
      if (!io::IsSha256Hex(name)) continue;
      SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(root + "/" + folder + "/" + name));
      blobs.push_back({{"sha256", name}, {"bytes", size}});
    }
  }
  return blobs;
}

// Copies each entry of a folder of logs or metrics whole from the first source that has it: parts
// of one log copied at two moments do not fit together.
absl::Status CopyEntries(const std::string& name, const std::vector<std::string>& sources,
                         const std::string& data_dir) {
  for (const std::string& source : sources) {
    if (source.empty() || !io::IsDirectory(source + name)) continue;
    SFT_ASSIGN_OR_RETURN(const std::vector<std::string> entries, io::ListDir(source + name));
    for (const std::string& entry : entries) {
      SFT_RETURN_IF_ERROR(CopyTree(fmt::format("{}{}/{}", source, name, entry),
                                   fmt::format("{}{}/{}", data_dir, name, entry)));
    }
  }
  return absl::OkStatus();
}

// The number of parts of checkpoints that lie on nodes and in shared folders.
absl::StatusOr<int64_t> PartsElsewhere(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement count,
                       db.Prepare("SELECT COUNT(*) FROM checkpoint_parts WHERE place <> ?"));
  SFT_ASSIGN_OR_RETURN(const bool row,
                       count.Bind(static_cast<int64_t>(CheckpointPlace::kServer)).Step());
  return row ? count.Int(0) : 0;
}

int64_t BytesOf(const nlohmann::json& blobs) {
  int64_t bytes = 0;
  for (const auto& blob : blobs) bytes += blob["bytes"].get<int64_t>();
  return bytes;
}

// Where the blobs of a restored folder came from.
struct Taken {
  int64_t there = 0, taken = 0, missing = 0;
};

// Puts the listed blobs into a store of a data folder, each from the first folder that has it.
absl::StatusOr<Taken> TakeBlobs(const nlohmann::json& blobs, const std::string& store,
                                const std::string& data_dir,
                                const std::vector<std::string>& sources) {
  Taken count;
  for (const auto& blob : blobs) {
    const std::string sha256 = blob["sha256"].get<std::string>();
    if (!io::IsSha256Hex(sha256)) return DataLoss("a blob's name in the manifest is no SHA-256");
    const std::string to = BlobPath(data_dir, store, sha256);
    if (io::Exists(to)) {
      ++count.there;
      continue;
    }
    const auto source = std::find_if(sources.begin(), sources.end(), [&](const auto& folder) {
      return !folder.empty() && io::Exists(BlobPath(folder, store, sha256));
    });
    if (source == sources.end()) {
      ++count.missing;
      continue;
    }
    SFT_RETURN_IF_ERROR(LinkOrCopy(BlobPath(*source, store, sha256), to));
    ++count.taken;
  }
  return count;
}

bool IsBlobList(const nlohmann::json& blobs) {
  return blobs.is_array() && std::all_of(blobs.begin(), blobs.end(), [](const auto& blob) {
           return blob.is_object() && blob.contains("sha256") && blob["sha256"].is_string();
         });
}

bool IsTextList(const nlohmann::json& texts) {
  return texts.is_array() &&
         std::all_of(texts.begin(), texts.end(), [](const auto& text) { return text.is_string(); });
}

absl::StatusOr<nlohmann::json> ReadManifest(const std::string& backup) {
  SFT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(backup + kManifest));
  nlohmann::json manifest = ParseJson(text);
  const bool whole = manifest.is_object() && manifest.contains("schema") &&
                     manifest["schema"].is_number_integer() && manifest.contains("sha256") &&
                     manifest["sha256"].is_string() && manifest.contains("version") &&
                     manifest["version"].is_string() && manifest.contains("blobs") &&
                     IsBlobList(manifest["blobs"]) &&
                     IsBlobList(manifest.value("checkpoints", nlohmann::json::array())) &&
                     IsTextList(manifest.value("left_out", nlohmann::json::array()));
  if (!whole) return DataLoss(fmt::format("{}{} cannot be read", backup, kManifest));
  return manifest;
}

absl::Status CheckBackup(const std::string& backup, const nlohmann::json& manifest) {
  SFT_ASSIGN_OR_RETURN(const io::FileHash hash, io::HashFile(backup + kDatabase));
  if (hash.sha256 != manifest["sha256"].get<std::string>()) {
    return DataLoss(
        fmt::format("{}{} is not what was written: use another backup", backup, kDatabase));
  }
  const int schema = manifest["schema"].get<int>();
  if (schema > Migrations().back().version) {
    return FailedPrecondition(
        fmt::format("the backup has schema {}, this server knows up to {}: it was made by "
                    "sft-server {}; restore "
                    "it with that one or a newer one",
                    schema, Migrations().back().version, manifest["version"].get<std::string>()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Backups::CopyDatabase(const std::string& path, const Progress& progress,
                                   v1::BackupResult& result) {
  std::unique_ptr<OnlineCopy> copy;
  absl::Status status = store_.ReadBetweenWrites([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(copy, OnlineCopy::Start(db, path));
    return absl::OkStatus();
  });
  bool whole = false;
  Nanos longest{0};
  int64_t done = 0, total = 0;
  while (status.ok() && !whole) {
    status = store_.ReadBetweenWrites([&](Database&) -> absl::Status {
      const MonoTime begin = clock_.Mono();
      SFT_ASSIGN_OR_RETURN(whole, copy->Step(kPagesAtOnce));
      longest = std::max(longest, Nanos(clock_.Mono() - begin));
      done = copy->pages_done();
      total = copy->pages_total();
      return absl::OkStatus();
    });
    if (status.ok() && !progress(done, total)) status = absl::CancelledError("nobody wants it");
  }
  // Runs on the store's thread, like all access to it; retried while the store is too busy.
  while (copy != nullptr) {
    const absl::Status ended = store_.ReadBetweenWrites([&](Database&) {
      copy.reset();
      return absl::OkStatus();
    });
    if (!ended.ok()) clock_.Sleep(std::chrono::milliseconds(20));
  }
  result.set_longest_step_ms(static_cast<double>(longest.count()) / 1e6);
  return status;
}

absl::StatusOr<nlohmann::json> Backups::TakeCheckpoints(const std::string& folder,
                                                        const Wanted& wanted,
                                                        v1::BackupResult& result) {
  nlohmann::json taken = nlohmann::json::array();
  int missing = 0;
  SFT_ASSIGN_OR_RETURN(const auto db, Database::OpenCopy(folder + kDatabase));
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db->Prepare("SELECT DISTINCT sha256, size FROM checkpoint_files"));
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) break;
    if (!wanted()) return absl::CancelledError("nobody wants it");
    const std::string sha256 = list.Text(0);
    const std::string from = BlobPath(data_dir_, kCheckpoints, sha256);
    const absl::Status linked = LinkOrCopy(from, BlobPath(folder, kCheckpoints, sha256));
    if (!linked.ok() && !io::Exists(from)) {
      ++missing;
      continue;
    }
    SFT_RETURN_IF_ERROR(linked);
    taken.push_back({{"sha256", sha256}, {"bytes", list.Int(1)}});
  }
  if (missing > 0) {
    result.add_left_out(
        fmt::format("{} files of checkpoints that the server no longer has", missing));
  }
  SFT_ASSIGN_OR_RETURN(const int64_t elsewhere, PartsElsewhere(*db));
  if (elsewhere > 0) {
    result.add_left_out(
        fmt::format("{} parts of checkpoints on nodes and in shared folders", elsewhere));
  }
  return taken;
}

absl::Status Backups::TakeFiles(const v1::BackupRequest& request, const std::string& folder,
                                const nlohmann::json& blobs, const Wanted& wanted,
                                v1::BackupResult& result) {
  if (request.with_blobs()) {
    for (const auto& blob : blobs) {
      if (!wanted()) return absl::CancelledError("nobody wants it");
      const std::string sha256 = blob["sha256"].get<std::string>();
      const std::string from = BlobPath(data_dir_, kBlobs, sha256);
      const absl::Status linked = LinkOrCopy(from, BlobPath(folder, kBlobs, sha256));
      if (!linked.ok() && io::Exists(from)) return linked;  // else it was deleted meanwhile
    }
  } else if (!blobs.empty()) {
    result.add_left_out(
        fmt::format("{} files of data sets and adapters, {}, in blobs/ (--with-blobs takes them)",
                    blobs.size(), BytesText(BytesOf(blobs))));
  }
  result.set_has_blobs(request.with_blobs());
  for (const char* name : kGrowing) {
    if (!io::IsDirectory(data_dir_ + name)) continue;
    if (request.without_logs()) {
      result.add_left_out(fmt::format("{}/ (--without-logs)", name + 1));
      continue;
    }
    SFT_RETURN_IF_ERROR(CopyGrowing(data_dir_ + name, folder + name, wanted));
    SFT_RETURN_IF_ERROR(SyncTree(folder + name, /*files=*/true));
    result.set_log_bytes(result.log_bytes() + io::TreeBytes(folder + name));
  }
  if (!io::ListDir(data_dir_ + kHookSecrets).value_or(std::vector<std::string>()).empty()) {
    result.add_left_out(
        "secrets of webhooks in webhooks/ (after a restore `sftctl webhook rotate` makes new "
        "ones)");
  }
  if (!io::IsDirectory(data_dir_ + kKeys)) return absl::OkStatus();
  if (request.with_keys()) {
    result.set_has_keys(true);
    return CopyKeys(data_dir_ + kKeys, folder + kKeys);
  }
  result.add_left_out("the fleet's keys in tls/ (--with-keys takes them)");
  return absl::OkStatus();
}

absl::Status Backups::Fill(const v1::BackupRequest& request, const std::string& folder,
                           const Progress& progress, v1::BackupResult& result) {
  const std::string path = folder + kDatabase;
  SFT_RETURN_IF_ERROR(CopyDatabase(path, progress, result));
  SFT_ASSIGN_OR_RETURN(const int schema, FinishCopy(path));
  SFT_ASSIGN_OR_RETURN(const io::FileHash hash, io::HashFile(path));
  SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(path));
  const int64_t pages = size / kPageBytes;
  const Wanted wanted = [&] { return progress(pages, pages); };
  SFT_ASSIGN_OR_RETURN(const nlohmann::json checkpoints, TakeCheckpoints(folder, wanted, result));
  SFT_ASSIGN_OR_RETURN(const nlohmann::json blobs, ListBlobs(data_dir_));
  SFT_RETURN_IF_ERROR(TakeFiles(request, folder, blobs, wanted, result));
  result.set_database_bytes(size);
  result.set_schema(schema);
  result.set_blobs(static_cast<int64_t>(blobs.size()));
  result.set_blob_bytes(BytesOf(blobs));
  result.set_checkpoint_blobs(static_cast<int64_t>(checkpoints.size()));
  result.set_checkpoint_bytes(BytesOf(checkpoints));
  const nlohmann::json manifest = {
      {"version", kVersion},
      {"time", FormatUtc(clock_.Wall())},
      {"schema", schema},
      {"bytes", size},
      {"sha256", hash.sha256},
      {"blobs", blobs},
      {"checkpoints", checkpoints},
      {"has_keys", result.has_keys()},
      {"left_out", std::vector<std::string>(result.left_out().begin(), result.left_out().end())}};
  SFT_RETURN_IF_ERROR(SyncTree(folder, /*files=*/false));
  return io::WriteFileAtomic(folder + kManifest, DumpJson(manifest, 1) + "\n", io::kPrivateMode);
}

absl::Status Backups::MakeFolder(const v1::BackupRequest& request, const std::string& folder,
                                 const Progress& progress, v1::BackupResult& result) {
  const std::string partial = folder + ".partial";
  // Left behind by a crash.
  SFT_RETURN_IF_ERROR(io::RemoveAll(partial));
  SFT_RETURN_IF_ERROR(io::MakeDirs(partial));
  absl::Status made = CloseToOthers(partial);
  if (made.ok()) made = Fill(request, partial, progress, result);
  if (made.ok()) made = io::RenameDurably(partial, folder);
  if (!made.ok()) (void)io::RemoveAll(partial);
  return made;
}

absl::StatusOr<v1::BackupResult> Backups::Make(const v1::BackupRequest& request,
                                               const Progress& progress) {
  const MonoTime begin = clock_.Mono();
  const std::string& to = request.to();
  if (!to.empty() && to.front() != '/') {
    return InvalidArgument(fmt::format("\"{}\": a folder on the server's machine, from /", to));
  }
  std::string folder = to.empty()
                           ? fmt::format("{}/backups/{}", data_dir_, FolderName(clock_.Wall()))
                           : fs::path(to).lexically_normal().string();
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  {
    const MutexLock lock(mutex_);
    if (!making_.insert(folder).second) {
      return Aborted(fmt::format(
          "another call makes the backup {} now: wait for it, or name another folder", folder));
    }
  }
  v1::BackupResult result;
  const absl::Status made = io::Exists(folder) ? AlreadyExists(fmt::format("{} exists", folder))
                                               : MakeFolder(request, folder, progress, result);
  {
    const MutexLock lock(mutex_);
    making_.erase(folder);
  }
  SFT_RETURN_IF_ERROR(made);
  const double now = static_cast<double>(UnixMicros(clock_.Wall())) / 1e6;
  SFT_RETURN_IF_ERROR(store_.Write([&](Database& db) {
    return store::SetTally(db, {store::Tally::kBackup, "", "", now});
  }));
  result.set_path(folder);
  result.set_seconds(SecondsOf(clock_.Mono() - begin));
  return result;
}

absl::StatusOr<std::string> RestoreBackup(const std::string& backup, const std::string& data_dir,
                                          const std::string& files_from) {
  SFT_ASSIGN_OR_RETURN(const nlohmann::json manifest, ReadManifest(backup));
  SFT_RETURN_IF_ERROR(CheckBackup(backup, manifest));
  const bool is_new = !io::Exists(data_dir);
  SFT_ASSIGN_OR_RETURN(const DataDirLock lock, DataDirLock::Acquire(data_dir));
  if (is_new) SFT_RETURN_IF_ERROR(CloseToOthers(data_dir));
  for (const char* name : {"/server.db", "/server.db-wal"}) {
    if (!io::Exists(data_dir + name)) continue;
    return AlreadyExists(
        fmt::format("{}{} exists: move it away, or restore into another folder", data_dir, name));
  }
  SFT_ASSIGN_OR_RETURN(const Taken files,
                       TakeBlobs(manifest["blobs"], kBlobs, data_dir, {backup, files_from}));
  SFT_ASSIGN_OR_RETURN(const Taken checkpoints,
                       TakeBlobs(manifest.value("checkpoints", nlohmann::json::array()),
                                 kCheckpoints, data_dir, {backup, files_from}));
  for (const char* name : kGrowing) {
    SFT_RETURN_IF_ERROR(CopyEntries(name, {files_from, backup}, data_dir));
  }
  for (const std::string& source : {files_from, backup}) {
    if (!source.empty()) SFT_RETURN_IF_ERROR(CopyTree(source + kKeys, data_dir + kKeys));
  }
  for (const char* store : {kBlobs, kCheckpoints}) {
    SFT_RETURN_IF_ERROR(SyncTree(data_dir + store, /*files=*/false));
  }
  const std::string copy = data_dir + "/server.db.restored";
  SFT_RETURN_IF_ERROR(io::RemoveAll(copy));
  std::error_code error;
  fs::copy_file(backup + kDatabase, copy, error);
  if (error) return ErrnoStatus("cannot copy " + backup + kDatabase, error.value());
  SFT_RETURN_IF_ERROR(FinishCopy(copy).status());
  SFT_RETURN_IF_ERROR(io::RenameDurably(copy, data_dir + kDatabase));
  std::string text = fmt::format(
      "restored {} into {}: files there {}, taken {}, missing {}; of checkpoints there {}, taken "
      "{}, missing {}\n",
      backup, data_dir, files.there, files.taken, files.missing, checkpoints.there,
      checkpoints.taken, checkpoints.missing);
  if (checkpoints.missing > 0) {
    text +=
        "a job that goes on from a checkpoint with a missing file fails once and goes on from an "
        "earlier one\n";
  }
  const auto left_out = manifest.value("left_out", std::vector<std::string>());
  if (!left_out.empty()) {
    text += fmt::format("the backup was made without: {}\n", fmt::join(left_out, "; "));
  }
  if (!io::Exists(data_dir + "/metrics")) {
    text +=
        "curves and logs of before are not there: --files-from takes them from the folder that has "
        "metrics/ and logs/\n";
  }
  if (files.missing > 0) {
    text +=
        "jobs that need a missing file fail until it is in blobs/ of the data folder "
        "(manifest.json lists them)\n";
  }
  return text;
}

}  // namespace sft::server
