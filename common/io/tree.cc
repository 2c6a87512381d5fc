#include "common/io/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "common/io/file.h"

namespace sft::io {
namespace {

constexpr mode_t kOwnersPart = 0700;
constexpr mode_t kAnyOfOthers = 007;
constexpr int kMaxDepth = 64;

absl::Status CloseAt(int parent, const char* name, const std::string& path,
                     const std::optional<Owner>& owner, int depth) {
  const UniqueFd fd(
      openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  // A link, a socket, or gone meanwhile.
  if (!fd.valid() && (errno == ELOOP || errno == ENXIO || errno == ENOENT)) return absl::OkStatus();
  if (!fd.valid()) return ErrnoStatus(fmt::format("cannot open {}", path), errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(fmt::format("cannot read {}", path), errno);
  const bool folder = S_ISDIR(info.st_mode);
  if (!folder && (!S_ISREG(info.st_mode) || info.st_nlink != 1)) return absl::OkStatus();
  if (owner && (info.st_uid != owner->uid || info.st_gid != owner->gid) &&
      fchown(fd.get(), owner->uid, owner->gid) != 0) {
    return ErrnoStatus(fmt::format("cannot change the owner of {}", path), errno);
  }
  if ((info.st_mode & 07777 & ~kOwnersPart) != 0 &&
      fchmod(fd.get(), info.st_mode & kOwnersPart) != 0) {
    return ErrnoStatus(fmt::format("cannot change the mode of {}", path), errno);
  }
  if (!folder) return absl::OkStatus();
  if (depth > kMaxDepth) return InvalidArgument(fmt::format("{} is nested too deep", path));
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3)),
                                                    closedir);
  if (entries == nullptr) return ErrnoStatus(fmt::format("cannot list {}", path), errno);
  while (const dirent* entry = readdir(entries.get())) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    SFT_RETURN_IF_ERROR(CloseAt(fd.get(), entry->d_name, fmt::format("{}/{}", path, entry->d_name),
                                owner, depth + 1));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CloseTree(const std::string& path, const std::optional<Owner>& owner) {
  return CloseAt(AT_FDCWD, path.c_str(), path, owner, 0);
}

absl::Status CloseDataDir(const std::string& path, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string child = fmt::format("{}/{}", path, name);
    struct stat info {};
    if (lstat(child.c_str(), &info) != 0 || S_ISLNK(info.st_mode)) continue;
    if ((info.st_mode & kAnyOfOthers) != 0) SFT_RETURN_IF_ERROR(CloseTree(child));
  }
  struct stat info {};
  if (stat(path.c_str(), &info) != 0)
    return ErrnoStatus(fmt::format("cannot read {}", path), errno);
  if ((info.st_mode & kAnyOfOthers) == 0 || (info.st_mode & S_ISVTX) != 0) return absl::OkStatus();
  if (chmod(path.c_str(), info.st_mode & kOwnersPart) == 0) return absl::OkStatus();
  return ErrnoStatus(fmt::format("cannot change the mode of {}", path), errno);
}

absl::Status MakeDirAs(const std::string& path, const Owner& owner, mode_t mode) {
  if (mkdir(path.c_str(), kOwnersPart) != 0 && errno != EEXIST) {
    return ErrnoStatus(fmt::format("cannot create the folder {}", path), errno);
  }
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(fmt::format("cannot open the folder {}", path), errno);
  if (fchown(fd.get(), owner.uid, owner.gid) != 0) {
    return ErrnoStatus(fmt::format("cannot change the owner of {}", path), errno);
  }
  if (fchmod(fd.get(), mode) != 0) {
    return ErrnoStatus(fmt::format("cannot change the mode of {}", path), errno);
  }
  return absl::OkStatus();
}

}  // namespace sft::io
