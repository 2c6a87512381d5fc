#include "common/io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <system_error>

#include "common/base/env.h"
#include "common/base/ids.h"
#include "common/io/fault.h"

namespace sft::io {
namespace fs = std::filesystem;

namespace {

// Set by tests; see fault.h.
std::function<absl::Status(std::string_view)>& WriteFault() {
  static std::function<absl::Status(std::string_view)> fault;
  return fault;
}

absl::Status CheckFault(std::string_view path) {
  return WriteFault() ? WriteFault()(path) : absl::OkStatus();
}

}  // namespace

void SetWriteFault(std::function<absl::Status(std::string_view)> fault) {
  WriteFault() = std::move(fault);
}

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

absl::Status UniqueFd::Close() {
  if (fd_ < 0) return absl::OkStatus();
  if (::close(std::exchange(fd_, -1)) != 0) return ErrnoStatus("cannot close a file", errno);
  return absl::OkStatus();
}

namespace {

absl::Status CheckRegular(const struct stat& info, const std::string& path) {
  if (S_ISREG(info.st_mode)) return absl::OkStatus();
  const char* const what = S_ISDIR(info.st_mode)    ? "a folder"
                           : S_ISFIFO(info.st_mode) ? "a pipe"
                                                    : "a device or socket";
  return InvalidArgument(fmt::format("{} is {}, not a regular file", path, what));
}

}  // namespace

absl::StatusOr<UniqueFd> OpenForRead(const std::string& path, Links links) {
  // Opening a pipe would wait for its other end, and a terminal could become this process's own.
  const int no_follow = links == Links::kRefuse ? O_NOFOLLOW : 0;
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | no_follow));
  if (!fd.valid()) return ErrnoStatus(fmt::format("cannot open {}", path), errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(fmt::format("cannot read {}", path), errno);
  SFT_RETURN_IF_ERROR(CheckRegular(info, path));
  return fd;
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes, Links links) {
  SFT_ASSIGN_OR_RETURN(const UniqueFd fd, OpenForRead(path, links));
  std::string content;
  // Files of /proc report no size, and others may grow meanwhile: the end of the file is where a
  // read comes short.
  SFT_ASSIGN_OR_RETURN(const int64_t size, FileSize(fd.get(), path));
  size_t chunk = size > 0 ? static_cast<size_t>(std::min(size, max_bytes)) + 1 : 1 << 12;
  for (;; chunk = 1 << 16) {
    const size_t before = content.size();
    content.resize(before + chunk);
    SFT_ASSIGN_OR_RETURN(const size_t got, ReadAt(fd.get(), static_cast<int64_t>(before),
                                                  content.data() + before, chunk, path));
    content.resize(before + got);
    if (static_cast<int64_t>(content.size()) > max_bytes) {
      return ResourceExhausted(fmt::format("{} is larger than {} bytes", path, max_bytes));
    }
    if (got < chunk) return content;
  }
}

absl::StatusOr<size_t> ReadAt(int fd, int64_t offset, char* data, size_t size,
                              std::string_view path) {
  size_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(fd, data + done, size - done, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(fmt::format("cannot read {}", path), errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

absl::Status WriteAll(int fd, std::string_view bytes, std::string_view path) {
  const absl::Status fault = CheckFault(path);
  if (!fault.ok()) bytes = bytes.substr(0, bytes.size() / 2);
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return ErrnoStatus(fmt::format("cannot write {}", path), errno);
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return fault;
}

absl::Status WriteFileAtomic(const std::string& path, std::string_view bytes, int mode) {
  SFT_RETURN_IF_ERROR(CheckFault(path));
  const std::string temporary = fmt::format("{}.{}", path, RandomId("tmp"));
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd.valid()) return ErrnoStatus(fmt::format("cannot create {}", temporary), errno);
  absl::Status status = WriteAll(fd.get(), bytes, temporary);
  if (status.ok() && ::fsync(fd.get()) != 0) {
    status = ErrnoStatus(fmt::format("cannot fsync {}", temporary), errno);
  }
  if (status.ok()) status = fd.Close();
  if (status.ok()) status = RenameDurably(temporary, path);
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

absl::Status MakeDirs(const std::string& path) {
  if (!Exists(path)) SFT_RETURN_IF_ERROR(CheckFault(path));
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return ErrnoStatus(fmt::format("cannot create the folder {}", path), error.value());
  return absl::OkStatus();
}

absl::Status SyncDir(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(fmt::format("cannot open the folder {}", path), errno);
  if (::fsync(fd.get()) != 0) return ErrnoStatus(fmt::format("cannot fsync {}", path), errno);
  return absl::OkStatus();
}

absl::Status RenameDurably(const std::string& from, const std::string& to) {
  SFT_RETURN_IF_ERROR(CheckFault(to));
  if (::rename(from.c_str(), to.c_str()) != 0) {
    return ErrnoStatus(fmt::format("cannot rename {} to {}", from, to), errno);
  }
  const std::string folder = fs::path(to).parent_path().string();
  return SyncDir(folder.empty() ? "." : folder);
}

absl::StatusOr<int64_t> FileSize(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return ErrnoStatus(fmt::format("cannot read {}", path), errno);
  return static_cast<int64_t>(info.st_size);
}

absl::StatusOr<int64_t> FileSize(int fd, std::string_view path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return ErrnoStatus(fmt::format("cannot read {}", path), errno);
  return static_cast<int64_t>(info.st_size);
}

absl::StatusOr<int64_t> FreeBytes(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0)
    return ErrnoStatus(fmt::format("cannot ask for the free space of {}", path), errno);
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

absl::Status PunchHole(const std::string& path, int64_t begin, int64_t end) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(fmt::format("cannot open {}", path), errno);
  if (::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, end - begin) == 0) {
    return absl::OkStatus();
  }
  if (errno == EOPNOTSUPP) {
    return absl::UnimplementedError(fmt::format("the file system of {} cannot make holes", path));
  }
  return ErrnoStatus(fmt::format("cannot make a hole in {}", path), errno);
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool IsDirectory(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

absl::Status CheckRegularFile(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return ErrnoStatus(fmt::format("cannot open {}", path), errno);
  return CheckRegular(info, path);
}

absl::Status RemoveAll(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return ErrnoStatus(fmt::format("cannot remove {}", path), error.value());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path, size_t most) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (names.size() == most) break;
    names.push_back(it->path().filename().string());
  }
  if (error) return ErrnoStatus(fmt::format("cannot list {}", path), error.value());
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::string> MakeTempDir(std::string_view prefix, std::string parent) {
  if (parent.empty()) parent = GetEnv("TMPDIR").value_or("/tmp");
  std::string path = fmt::format("{}/{}XXXXXX", parent, prefix);
  if (::mkdtemp(path.data()) == nullptr) {
    return ErrnoStatus(fmt::format("cannot create a temporary folder in {}", parent), errno);
  }
  return path;
}

absl::StatusOr<AppendFile> AppendFile::Open(const std::string& path) {
  if (!Exists(path)) SFT_RETURN_IF_ERROR(CheckFault(path));
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(fmt::format("cannot open {}", path), errno);
  SFT_ASSIGN_OR_RETURN(const int64_t size, FileSize(fd.get(), path));
  return AppendFile(std::move(fd), path, size);
}

absl::Status AppendFile::Append(std::string_view bytes) {
  const absl::Status status = WriteAll(fd_.get(), bytes, path_);
  if (!status.ok()) {
    // A partial write would be taken for data. The error returned is that of the write.
    if (::ftruncate(fd_.get(), size_) != 0) {
      return Annotate(status, "and the partial write cannot be undone");
    }
    return status;
  }
  size_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status AppendFile::Sync() {
  if (::fdatasync(fd_.get()) != 0) return ErrnoStatus(fmt::format("cannot fsync {}", path_), errno);
  return absl::OkStatus();
}

absl::Status AppendFile::Truncate(int64_t size) {
  if (size > size_) {
    return OutOfRange(fmt::format("{} has {} bytes, fewer than {}", path_, size_, size));
  }
  if (::ftruncate(fd_.get(), size) != 0)
    return ErrnoStatus(fmt::format("cannot cut {}", path_), errno);
  size_ = size;
  return absl::OkStatus();
}

}  // namespace sft::io
