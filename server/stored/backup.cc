#include "server/stored/backup.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/bytes.h"
#include "common/base/duration.h"
#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/base/version.h"
#include "common/io/disk_space.h"
#include "common/io/file.h"
#include "common/io/paths.h"
#include "common/io/sha256.h"
#include "common/rpc/channel.h"
#include "server/blob/blob_store.h"
#include "server/database/online_copy.h"
#include "server/state/records.h"
#include "server/store/tallies.h"
#include "server/stored/backup_folder.h"
#include "server/stored/file_copies.h"

namespace sft::server {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPageBytes = 4096;
// Where backups lie in a data folder, and how the folders begin from which a standby is sent.
constexpr char kFolder[] = "/backups", kForStandby[] = "standby-";

// Secrets of others, which are in no copy, and what a restored server needs in their place.
constexpr std::pair<const char*, const char*> kSecretFolders[] = {
    {"/webhooks",
     "secrets of webhooks in webhooks/ (after a restore `sftctl webhook rotate` makes new ones)"},
    {"/secrets", "secrets of projects in secrets/ (`sftctl admin project set P --secret`)"},
    {"/hub-tokens", "projects' tokens of the hub (`sftctl admin project set P --hub-token-file`)"}};

// "2026-01-31T12-34-56Z"
std::string FolderName(WallTime now) {
  std::string name = FormatUtc(now).substr(0, 19) + "Z";
  std::replace(name.begin(), name.end(), ':', '-');
  return name;
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

// Logs and curves of a data folder, for a standby: path, size, and when it was last written.
absl::StatusOr<nlohmann::json> ListGrowing(const std::string& data_dir) {
  nlohmann::json files = nlohmann::json::array();
  for (const char* name : kGrowing) {
    std::error_code error;
    for (fs::recursive_directory_iterator it(data_dir + name, error), end; !error && it != end;
         it.increment(error)) {
      struct stat info {};
      const std::string path = it->path().string();
      // What a limit has removed meanwhile is not listed.
      if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
      files.push_back({{"path", path.substr(data_dir.size() + 1)},
                       {"bytes", int64_t{info.st_size}},
                       {"changed_ns", info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec}});
    }
    if (error && io::Exists(data_dir + name)) {
      return ErrnoStatus("cannot list " + data_dir + name, error.value());
    }
  }
  return files;
}

bool IsListed(std::string_view path) {
  for (const char* name : {kBlobs, kCheckpoints, kGrowing[0], kGrowing[1]}) {
    if (path.starts_with(std::string(name + 1) + "/")) return true;
  }
  return false;
}

// True when the first `bytes` of the file have that hash.
bool BeginsWith(const io::UniqueFd& fd, const std::string& path, int64_t bytes,
                const std::string& sha256) {
  io::Sha256 hash;
  std::string chunk(rpc::kChunkBytes, '\0');
  for (int64_t offset = 0; offset < bytes;) {
    const auto want = static_cast<size_t>(std::min<int64_t>(bytes - offset, rpc::kChunkBytes));
    const absl::StatusOr<size_t> got = io::ReadAt(fd.get(), offset, chunk.data(), want, path);
    if (!got.ok() || *got == 0) return false;
    hash.Update({chunk.data(), *got});
    offset += static_cast<int64_t>(*got);
  }
  return hash.FinishHex() == sha256;
}

}  // namespace

Backups::Backups(Store& store, Clock& clock, std::string data_dir)
    : store_(store), clock_(clock), data_dir_(std::move(data_dir)) {
  const std::string folder = data_dir_ + kFolder;
  for (const std::string& name : io::ListDir(folder).value_or(std::vector<std::string>())) {
    if (name.starts_with(kForStandby)) (void)io::RemoveAll(folder + "/" + name);
  }
}

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

absl::StatusOr<nlohmann::json> Backups::TakeCheckpoints(const std::string& folder, bool listed,
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
    const absl::Status linked =
        listed ? absl::OkStatus() : LinkOrCopy(from, BlobPath(folder, kCheckpoints, sha256));
    if ((listed || !linked.ok()) && !io::Exists(from)) {
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
  } else if (!blobs.empty() && !request.listed()) {
    result.add_left_out(
        fmt::format("{} files of data sets and adapters, {}, in blobs/ (--with-blobs takes them)",
                    blobs.size(), BytesText(BytesOf(blobs))));
  }
  result.set_has_blobs(request.with_blobs());
  for (const char* name : kGrowing) {
    if (!io::IsDirectory(data_dir_ + name) || request.listed()) continue;
    if (request.without_logs()) {
      result.add_left_out(fmt::format("{}/ (--without-logs)", name + 1));
      continue;
    }
    SFT_RETURN_IF_ERROR(CopyGrowing(data_dir_ + name, folder + name, wanted));
    SFT_RETURN_IF_ERROR(SyncTree(folder + name, /*files=*/true));
    result.set_log_bytes(result.log_bytes() + io::TreeBytes(folder + name));
  }
  for (const auto& [folder, what] : kSecretFolders) {
    if (io::ListDir(data_dir_ + folder).value_or(std::vector<std::string>()).empty()) continue;
    result.add_left_out(what);
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
  SFT_ASSIGN_OR_RETURN(const nlohmann::json checkpoints,
                       TakeCheckpoints(folder, request.listed(), wanted, result));
  SFT_ASSIGN_OR_RETURN(const nlohmann::json blobs, ListBlobs(data_dir_));
  SFT_RETURN_IF_ERROR(TakeFiles(request, folder, blobs, wanted, result));
  result.set_database_bytes(size);
  result.set_schema(schema);
  result.set_blobs(static_cast<int64_t>(blobs.size()));
  result.set_blob_bytes(BytesOf(blobs));
  result.set_checkpoint_blobs(static_cast<int64_t>(checkpoints.size()));
  result.set_checkpoint_bytes(BytesOf(checkpoints));
  nlohmann::json manifest = {
      {"version", kVersion},
      {"time", FormatUtc(clock_.Wall())},
      {"schema", schema},
      {"bytes", size},
      {"sha256", hash.sha256},
      {"blobs", blobs},
      {"checkpoints", checkpoints},
      {"has_keys", result.has_keys()},
      {"left_out", std::vector<std::string>(result.left_out().begin(), result.left_out().end())}};
  if (request.listed()) {
    SFT_ASSIGN_OR_RETURN(manifest["files"], ListGrowing(data_dir_));
  }
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
  if (request.listed() && !request.download()) {
    return InvalidArgument("a listed backup is sent to a standby (download), and not kept");
  }
  const std::string name =
      request.listed() ? kForStandby + RandomUuid() : FolderName(clock_.Wall());
  std::string folder = to.empty() ? fmt::format("{}{}/{}", data_dir_, kFolder, name)
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
  if (!request.listed()) {
    const double now = static_cast<double>(UnixMicros(clock_.Wall())) / 1e6;
    SFT_RETURN_IF_ERROR(store_.Write([&](Database& db) {
      return store::SetTally(db, {store::Tally::kBackup, "", "", now});
    }));
  }
  result.set_path(folder);
  result.set_seconds(SecondsOf(clock_.Mono() - begin));
  return result;
}

absl::Status Backups::ReadFile(const v1::ReadFileRequest& request, const Piece& sink) {
  if (!io::IsSafeRelative(request.path()) || !IsListed(request.path())) {
    return InvalidArgument("path: only files below blobs/, checkpoints/, logs/ and metrics/");
  }
  const std::string path = data_dir_ + "/" + request.path();
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path));
  int64_t offset = request.offset();
  if (offset < 0) return InvalidArgument("offset: must not be negative");
  if (!request.sha256_before().empty() && !BeginsWith(fd, path, offset, request.sha256_before())) {
    offset = 0;
  }
  v1::ReadFileResponse piece;
  std::string chunk(rpc::kChunkBytes, '\0');
  while (true) {
    SFT_ASSIGN_OR_RETURN(const size_t got,
                         io::ReadAt(fd.get(), offset, chunk.data(), chunk.size(), path));
    piece.set_offset(offset);
    piece.set_data(chunk.substr(0, got));
    if (!sink(piece)) return absl::CancelledError("the reader is gone");
    offset += static_cast<int64_t>(got);
    if (got < chunk.size()) return absl::OkStatus();
  }
}

}  // namespace sft::server
