#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"

// File operations that return errors as values: a full disk is RESOURCE_EXHAUSTED, a missing file
// NOT_FOUND, and the message names the path.

namespace sft::io {

// Owns a file descriptor; movable, not copyable.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Closes now and returns the error of close(), which is where a write fails on network file
  // systems.
  absl::Status Close();

 private:
  int fd_ = -1;
};

// How to treat a path that is itself a symbolic link.
enum class Links { kFollow, kRefuse };

// Opens a regular file; INVALID_ARGUMENT for anything else. Never blocks, as opening a pipe would.
absl::StatusOr<UniqueFd> OpenForRead(const std::string& path, Links links = Links::kFollow);

// Reads the whole file; RESOURCE_EXHAUSTED when it is larger than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes = int64_t{1} << 30,
                                     Links links = Links::kFollow);

// Reads up to `size` bytes from `offset`; fewer only at the end of the file. `path` is used in the
// error message.
absl::StatusOr<size_t> ReadAt(int fd, int64_t offset, char* data, size_t size,
                              std::string_view path);

// Writes all bytes at the descriptor's position.
absl::Status WriteAll(int fd, std::string_view bytes, std::string_view path);

// Replaces the file atomically: a reader, or a machine that loses power, sees the old content or
// the new. Writes a temporary file beside it, fsyncs it, renames it and fsyncs the folder. Leaves
// nothing behind on failure.
absl::Status WriteFileAtomic(const std::string& path, std::string_view bytes, int mode = 0644);
// Mode of a file that only its owner may read, such as a key or token.
inline constexpr int kPrivateMode = 0600;

// Creates the folder and its parents.
absl::Status MakeDirs(const std::string& path);
// Makes renames and new files in the folder durable.
absl::Status SyncDir(const std::string& path);
// Renames durably; both paths must be in one file system.
absl::Status RenameDurably(const std::string& from, const std::string& to);

absl::StatusOr<int64_t> FileSize(const std::string& path);
// Size of an open file. `path` is used in the error message.
absl::StatusOr<int64_t> FileSize(int fd, std::string_view path);
bool Exists(const std::string& path);
// Frees the disk blocks of [begin, end): they read as zeros, while size and offsets stay.
// UNIMPLEMENTED where the file system cannot do it.
absl::Status PunchHole(const std::string& path, int64_t begin, int64_t end);
// Bytes that an ordinary user may still write to the file system that holds `path`.
absl::StatusOr<int64_t> FreeBytes(const std::string& path);
bool IsDirectory(const std::string& path);
// INVALID_ARGUMENT for anything but a regular file, which can be read twice and has a size: a
// folder, a pipe (opening one may block for ever), a device. A link counts as its target.
absl::Status CheckRegularFile(const std::string& path);
// Removes a file or a whole folder; OK if it is missing. Links are removed, not followed.
absl::Status RemoveAll(const std::string& path);
// Names (not paths) in a folder, sorted; at most `most` of them.
absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path, size_t most = SIZE_MAX);

// Creates an empty folder whose name starts with `prefix`, in `parent`; with "" in $TMPDIR or /tmp.
absl::StatusOr<std::string> MakeTempDir(std::string_view prefix, std::string parent = "");

// An append-only file that tracks its own size. Not thread-safe; one writer per file.
class AppendFile {
 public:
  // Opens the file, or creates an empty one.
  static absl::StatusOr<AppendFile> Open(const std::string& path);

  // After an error (a full disk) the file is cut back to its former size, so that a later append
  // continues where the last complete one ended.
  absl::Status Append(std::string_view bytes);
  absl::Status Sync();
  // Truncates the file to `size` bytes, which must not exceed its size.
  absl::Status Truncate(int64_t size);
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  AppendFile(UniqueFd fd, std::string path, int64_t size)
      : fd_(std::move(fd)), path_(std::move(path)), size_(size) {}

  UniqueFd fd_;
  std::string path_;
  int64_t size_;
};

}  // namespace sft::io
