#include "server/stored/backup.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/duration.h"
#include "common/base/json.h"
#include "common/base/version.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "server/blob/blob_store.h"
#include "server/database/data_dir_lock.h"
#include "server/database/migrations.h"
#include "server/database/online_copy.h"

namespace sft::server {
namespace {

namespace fs = std::filesystem;

constexpr char kDatabase[] = "/server.db";
constexpr int64_t kPageBytes = 4096;
constexpr char kManifest[] = "/manifest.json";
constexpr char kBlobs[] = "/blobs", kCheckpoints[] = "/checkpoints";  // folders of a data folder

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

absl::Status SyncFile(const std::string& path) {
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path));
  if (::fsync(fd.get()) != 0) return ErrnoStatus("cannot fsync " + path, errno);
  return absl::OkStatus();
}

// Syncs the names in a folder and all below it and, with `files`, their contents too.
absl::Status SyncTree(const std::string& root, bool files) {
  if (!io::IsDirectory(root)) return absl::OkStatus();
  std::error_code error;
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    const std::string path = it->path().string();
    if (it->is_directory(error)) {
      SFT_RETURN_IF_ERROR(io::SyncDir(path));
    } else if (files && it->is_regular_file(error)) {
      SFT_RETURN_IF_ERROR(SyncFile(path));
    }
  }
  if (error) return ErrnoStatus("cannot list " + root, error.value());
  return io::SyncDir(root);
}

absl::Status CloseToOthers(const std::string& folder) {
  if (::chmod(folder.c_str(), 0700) != 0) return ErrnoStatus("cannot close " + folder, errno);
  return absl::OkStatus();
}

// Makes a hard link where the file system allows it, else a copy.
absl::Status LinkOrCopy(const std::string& from, const std::string& to) {
  if (io::Exists(to)) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(io::MakeDirs(fs::path(to).parent_path().string()));
  std::error_code error;
  fs::create_hard_link(from, to, error);
  if (!error) return absl::OkStatus();
  const std::string partial = to + ".partial";
  fs::copy_file(from, partial, fs::copy_options::overwrite_existing, error);
  if (error) return ErrnoStatus(fmt::format("cannot copy {} to {}", from, to), error.value());
  // Otherwise a power failure could leave an empty file under the name of its hash.
  SFT_RETURN_IF_ERROR(SyncFile(partial));
  return io::RenameDurably(partial, to);
}

// Logs, metrics and keys may be rewritten in place: they are copied, never linked.
absl::Status CopyTree(const std::string& from, const std::string& to) {
  if (!io::IsDirectory(from)) return absl::OkStatus();
  std::error_code error;
  fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::skip_existing, error);
  if (error) return ErrnoStatus(fmt::format("cannot copy {} to {}", from, to), error.value());
  return SyncTree(to, /*files=*/true);
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

absl::StatusOr<nlohmann::json> ReadManifest(const std::string& backup) {
  SFT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(backup + kManifest));
  nlohmann::json manifest = ParseJson(text);
  const bool whole = manifest.is_object() && manifest.contains("schema") &&
                     manifest["schema"].is_number_integer() && manifest.contains("sha256") &&
                     manifest["sha256"].is_string() && manifest.contains("version") &&
                     manifest["version"].is_string() && manifest.contains("blobs") &&
                     IsBlobList(manifest["blobs"]) &&
                     IsBlobList(manifest.value("checkpoints", nlohmann::json::array()));
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
                                                        const std::function<bool()>& wanted) {
  nlohmann::json taken = nlohmann::json::array();
  SFT_ASSIGN_OR_RETURN(const auto db, Database::OpenCopy(folder + kDatabase));
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db->Prepare("SELECT DISTINCT sha256, size FROM checkpoint_files"));
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return taken;
    if (!wanted()) return absl::CancelledError("nobody wants it");
    const std::string sha256 = list.Text(0);
    const std::string from = BlobPath(data_dir_, kCheckpoints, sha256);
    const absl::Status linked = LinkOrCopy(from, BlobPath(folder, kCheckpoints, sha256));
    if (!linked.ok() && !io::Exists(from)) continue;
    SFT_RETURN_IF_ERROR(linked);
    taken.push_back({{"sha256", sha256}, {"bytes", list.Int(1)}});
  }
}

absl::Status Backups::Fill(const std::string& folder, const Progress& progress,
                           v1::BackupResult& result) {
  const std::string path = folder + kDatabase;
  SFT_RETURN_IF_ERROR(CopyDatabase(path, progress, result));
  SFT_ASSIGN_OR_RETURN(const int schema, FinishCopy(path));
  SFT_ASSIGN_OR_RETURN(const io::FileHash hash, io::HashFile(path));
  SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(path));
  const int64_t pages = size / kPageBytes;
  SFT_ASSIGN_OR_RETURN(const nlohmann::json checkpoints,
                       TakeCheckpoints(folder, [&] { return progress(pages, pages); }));
  SFT_ASSIGN_OR_RETURN(const nlohmann::json blobs, ListBlobs(data_dir_));
  result.set_database_bytes(size);
  result.set_schema(schema);
  result.set_blobs(static_cast<int64_t>(blobs.size()));
  result.set_blob_bytes(BytesOf(blobs));
  result.set_checkpoint_blobs(static_cast<int64_t>(checkpoints.size()));
  result.set_checkpoint_bytes(BytesOf(checkpoints));
  const nlohmann::json manifest = {{"version", kVersion},       {"time", FormatUtc(clock_.Wall())},
                                   {"schema", schema},          {"bytes", size},
                                   {"sha256", hash.sha256},     {"blobs", blobs},
                                   {"checkpoints", checkpoints}};
  SFT_RETURN_IF_ERROR(SyncTree(folder, /*files=*/false));
  return io::WriteFileAtomic(folder + kManifest, DumpJson(manifest, 1) + "\n", io::kPrivateMode);
}

absl::Status Backups::MakeFolder(const std::string& folder, const Progress& progress,
                                 v1::BackupResult& result) {
  const std::string partial = folder + ".partial";
  // Left behind by a crash.
  SFT_RETURN_IF_ERROR(io::RemoveAll(partial));
  SFT_RETURN_IF_ERROR(io::MakeDirs(partial));
  absl::Status made = CloseToOthers(partial);
  if (made.ok()) made = Fill(partial, progress, result);
  if (made.ok()) made = io::RenameDurably(partial, folder);
  if (!made.ok()) (void)io::RemoveAll(partial);
  return made;
}

absl::StatusOr<v1::BackupResult> Backups::Make(const std::string& to, const Progress& progress) {
  const MonoTime begin = clock_.Mono();
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
                                               : MakeFolder(folder, progress, result);
  {
    const MutexLock lock(mutex_);
    making_.erase(folder);
  }
  SFT_RETURN_IF_ERROR(made);
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
                       TakeBlobs(manifest["blobs"], kBlobs, data_dir, {files_from}));
  SFT_ASSIGN_OR_RETURN(const Taken checkpoints,
                       TakeBlobs(manifest.value("checkpoints", nlohmann::json::array()),
                                 kCheckpoints, data_dir, {backup, files_from}));
  if (!files_from.empty()) {
    for (const char* name : {"/logs", "/metrics", "/tls"}) {
      SFT_RETURN_IF_ERROR(CopyTree(files_from + name, data_dir + name));
    }
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
  if (!io::Exists(data_dir + "/metrics")) {
    text +=
        "curves and logs of before are not there: a backup does not hold them; --files-from takes "
        "them from the folder that has metrics/ and logs/\n";
  }
  if (files.missing > 0) {
    text +=
        "jobs that need a missing file fail until it is in blobs/ of the data folder "
        "(manifest.json lists them)\n";
  }
  return text;
}

}  // namespace sft::server
