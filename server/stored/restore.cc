#include "server/stored/restore.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/io/file.h"
#include "common/io/sha256.h"
#include "server/database/data_dir_lock.h"
#include "server/database/migrations.h"
#include "server/database/online_copy.h"
#include "server/store/generation.h"
#include "server/stored/backup_folder.h"
#include "server/stored/file_copies.h"

namespace sft::server {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

absl::StatusOr<int64_t> RaiseGenerationOf(const std::string& path, const std::string& kept_as,
                                          Clock& clock, int64_t above) {
  int64_t generation = 0;
  {
    SFT_ASSIGN_OR_RETURN(const std::unique_ptr<Database> db, Database::OpenCopy(path));
    SFT_RETURN_IF_ERROR(Migrate(*db, kept_as));
    SFT_ASSIGN_OR_RETURN(generation, store::RaiseGeneration(*db, UnixMicros(clock.Wall()), above));
  }
  SFT_RETURN_IF_ERROR(FinishCopy(path).status());
  return generation;
}

absl::StatusOr<std::string> RestoreBackup(const std::string& backup, const std::string& data_dir,
                                          const std::string& files_from, Clock& clock) {
  SFT_ASSIGN_OR_RETURN(const nlohmann::json manifest, ReadManifest(backup));
  SFT_RETURN_IF_ERROR(CheckBackup(backup + kDatabase, manifest));
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
  SFT_RETURN_IF_ERROR(RaiseGenerationOf(copy, data_dir + kDatabase, clock, 0).status());
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
