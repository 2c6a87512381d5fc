#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/io/file.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/disk.h"
#include "worker/engine/checkpoint/safetensors_writer.h"

namespace sft::engine {

namespace fs = std::filesystem;

void ThrowDiskError(std::string_view verb, const fs::path& path, int error_number,
                    uint64_t needed_bytes) {
  std::string message =
      fmt::format("cannot {} {}: {}", verb, path.string(), strerror(error_number));
  if (error_number != ENOSPC && error_number != EDQUOT && error_number != EFBIG) {
    throw InfrastructureError(message, "disk_error",
                              "Check the owner, the mode and the health of this file system.");
  }
  struct statvfs info {};
  if (statvfs(path.parent_path().c_str(), &info) == 0) {
    message += fmt::format("; {} bytes are free", uint64_t{info.f_bavail} * info.f_frsize);
  }
  if (needed_bytes > 0) message += fmt::format(", {} are needed", needed_bytes);
  throw InfrastructureError(
      message, "disk_full",
      "Free space there, raise the quota, or give the worker another folder.");
}

void CheckDisk(const absl::Status& status) {
  if (status.ok()) return;
  const bool full = status.code() == absl::StatusCode::kResourceExhausted;
  throw InfrastructureError(std::string(Message(status)), full ? "disk_full" : "disk_error",
                            full ? "Free space there, or give the worker another folder." : "");
}

void WriteTextFile(const fs::path& path, std::string_view text) {
  CheckDisk(io::WriteFileAtomic(path.string(), text));
}

StagedDirectory::StagedDirectory(fs::path target)
    : target_(fs::absolute(target).lexically_normal()) {
  // "dir/" names its last part "": the staging folder would lie inside the target.
  if (target_.filename().empty()) target_ = target_.parent_path();
  staging_ = target_;
  staging_ += fmt::format(".partial-{}", getpid());
  CheckDisk(io::RemoveAll(staging_.string()));
  CheckDisk(io::MakeDirs(staging_.string()));
}

StagedDirectory::~StagedDirectory() {
  if (committed_) return;
  // A failure here leaves a folder named .partial-*; there is no one to tell.
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
}

void StagedDirectory::Commit() {
  CheckDisk(io::SyncDir(staging_.string()));
  fs::path old = target_;
  old += fmt::format(".old-{}", getpid());
  std::error_code error;
  const bool replaces = fs::exists(target_);
  if (replaces) {
    fs::rename(target_, old, error);
    if (error) ThrowDiskError("replace", target_, error.value(), 0);
  }
  fs::rename(staging_, target_, error);
  if (error) {
    const int number = error.value();
    if (replaces) fs::rename(old, target_, error);
    ThrowDiskError("create", target_, number, 0);
  }
  committed_ = true;
  CheckDisk(io::SyncDir(target_.parent_path().string()));
  if (replaces) CheckDisk(io::RemoveAll(old.string()));
}

}  // namespace sft::engine
