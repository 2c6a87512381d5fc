#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"

// Files with errors as values: a full disk is RESOURCE_EXHAUSTED, a missing file NOT_FOUND, and the
// message names the path.

namespace sft::io {

// Owns a file descriptor; movable.
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
  // Closes now and reports what close() says: on network file systems that is where a write fails.
  absl::Status Close();

 private:
  int fd_ = -1;
};

// What is done where the path itself is a symbolic link.
enum class Links { kFollow, kRefuse };

// INVALID_ARGUMENT for what is there and no regular file; never waits, as opening a pipe would.
absl::StatusOr<UniqueFd> OpenForRead(const std::string& path, Links links = Links::kFollow);

// Whole file; RESOURCE_EXHAUSTED when it is larger than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes = int64_t{1} << 30,
                                     Links links = Links::kFollow);

// Up to `size` bytes from `offset`; fewer only at the end of the file. `path` is for the message.
absl::StatusOr<size_t> ReadAt(int fd, int64_t offset, char* data, size_t size,
                              std::string_view path);

// Writes all bytes at the descriptor's position.
absl::Status WriteAll(int fd, std::string_view bytes, std::string_view path);

// Replaces the file as a whole: a reader, and a machine that loses power, sees the old content or
// the new one. Writes a temporary file beside it, fsyncs it, renames it, fsyncs the folder. Nothing
// is left behind on failure.
absl::Status WriteFileAtomic(const std::string& path, std::string_view bytes, int mode = 0644);
// Of a file that only its owner may read: a key, a token.
inline constexpr int kPrivateMode = 0600;

// Creates the folder and its parents.
absl::Status MakeDirs(const std::string& path);
// Makes renames and new files in the folder durable.
absl::Status SyncDir(const std::string& path);
// Renames and makes it durable; both paths in one file system.
absl::Status RenameDurably(const std::string& from, const std::string& to);

absl::StatusOr<int64_t> FileSize(const std::string& path);
// `path` is for the message.
absl::StatusOr<int64_t> FileSize(int fd, std::string_view path);
bool Exists(const std::string& path);
// Gives the blocks of [begin, end) back to the disk: they read as zeros, size and offsets stay.
// UNIMPLEMENTED where the file system cannot.
absl::Status PunchHole(const std::string& path, int64_t begin, int64_t end);
// What an ordinary user may still write to the file system that holds `path`.
absl::StatusOr<int64_t> FreeBytes(const std::string& path);
bool IsDirectory(const std::string& path);
// INVALID_ARGUMENT for what is there and no file to read twice or to ask for its size: a folder, a
// pipe (opening one may wait for ever), a device. A link counts as what it names.
absl::Status CheckRegularFile(const std::string& path);
// Removes a file or a whole folder; missing is OK. Links are removed, not followed.
absl::Status RemoveAll(const std::string& path);
// Names (not paths) in a folder, sorted; of one that has more than `most`, so many of them.
absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path, size_t most = SIZE_MAX);

// A new empty folder whose name starts with `prefix`, in `parent`; "": in $TMPDIR or /tmp.
absl::StatusOr<std::string> MakeTempDir(std::string_view prefix, std::string parent = "");

// An append-only file that knows its own size. Not thread-safe; one writer a file.
class AppendFile {
 public:
  // Opens, or creates with its size 0.
  static absl::StatusOr<AppendFile> Open(const std::string& path);

  // After an error (a full disk) the file is cut back to its former size, so that a later append
  // continues where the last complete one ended.
  absl::Status Append(std::string_view bytes);
  absl::Status Sync();
  // Cuts the file to `size` bytes; at most its size.
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
