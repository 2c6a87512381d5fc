#include "worker/engine/data/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "common/io/file.h"
#include "common/io/file_stamp.h"
#include "common/io/is_there.h"
#include "worker/engine/base/error.h"

namespace sft::engine {

void ThrowIfError(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kInvalidArgument:
      throw UserError(std::string(Message(status)));
    default:
      ThrowIfNodeError(status);
  }
}

void ThrowIfNodeError(const absl::Status& status) {
  if (status.ok()) return;
  const std::string message(Message(status));
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    throw InfrastructureError(message, "disk_full", "free space on the node, or move the folder");
  }
  throw InfrastructureError(message);
}

bool FileExists(const std::filesystem::path& path) {
  const absl::StatusOr<bool> there = io::IsThere(path.string());
  ThrowIfError(there.status());
  return *there;
}

std::string ReadTextFile(const std::filesystem::path& path) {
  auto text = io::ReadFile(path.string());
  ThrowIfError(text.status());
  return *std::move(text);
}

void MappedFile::Unmap::operator()(const char* data) const {
  if (size > 0) munmap(const_cast<char*>(data), size);
}

namespace {

struct stat StatOf(int fd, const std::filesystem::path& path) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) ThrowIfError(ErrnoStatus(path.string(), errno));
  return info;
}

void CheckUnchanged(int fd, const struct stat& info, const std::filesystem::path& path,
                    const std::string& stamp) {
  std::error_code error;
  const auto real = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), error);
  const bool same_place = !error && real == path;
  const std::string now = io::ContentStamp(info);
  if (same_place && now == stamp) return;
  throw UserError(
      fmt::format("{} has changed since the node took the job up ({}, now {})", path.string(),
                  stamp, same_place ? now : fmt::format("{} at {}", now, real.string())),
      "data_changed",
      "leave a file on a node as it is until the jobs that name it have begun to train, then "
      "submit "
      "again");
}

}  // namespace

MappedFile MappedFile::Open(const std::filesystem::path& path, const std::string& stamp) {
  auto fd = io::OpenForRead(path.string());
  ThrowIfError(fd.status());
  if (!stamp.empty()) CheckUnchanged(fd->get(), StatOf(fd->get(), path), path, stamp);
  return Map(*std::move(fd), path);
}

MappedFile MappedFile::Map(io::UniqueFd fd, const std::filesystem::path& path) {
  const struct stat info = StatOf(fd.get(), path);
  if (!S_ISREG(info.st_mode)) {
    throw UserError(fmt::format("{} is not a file; give the path of a file", path.string()));
  }
  const auto size = static_cast<size_t>(info.st_size);
  // An empty file cannot be mapped; any address does for no bytes.
  static constexpr char kNothing = 0;
  if (size == 0) return {std::move(fd), {&kNothing, Unmap{0}}};
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) ThrowIfError(ErrnoStatus(path.string(), errno));
  return {std::move(fd), {static_cast<const char*>(data), Unmap{size}}};
}

io::UniqueFd MappedFile::Descriptor() const {
  io::UniqueFd fd(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!fd.valid()) ThrowIfNodeError(ErrnoStatus("a mapped file", errno));
  return fd;
}

}  // namespace sft::engine
