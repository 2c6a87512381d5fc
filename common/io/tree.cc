#include "common/io/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
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
constexpr mode_t kWriteOfOthers = 022;
// Maximum depth of the walk; each level holds two descriptors.
constexpr int kMaxDepth = 64;

// Errors for an entry that this process cannot change: it belongs to another user, or its file
// system has no modes.
bool IsOutOfReach(int error) {
  return error == EPERM || error == EACCES || error == EROFS || error == ENOTSUP;
}

// State of one walk down a tree.
struct Walk {
  std::optional<Owner> owner;
  // Entries out of reach are left as they are, without an error.
  bool lenient = false;

  absl::Status Failed(const char* what, const std::string& path, int error) const {
    if (lenient && IsOutOfReach(error)) return absl::OkStatus();
    return ErrnoStatus(fmt::format("cannot {} {}", what, path), error);
  }
};

bool IsOpen(const struct stat& info) { return (info.st_mode & kAnyOfOthers) != 0; }

absl::Status CloseAt(int parent, const char* name, const std::string& path, const Walk& walk,
                     int depth) {
  const UniqueFd fd(
      openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  // A link, a socket, or an entry that vanished meanwhile.
  if (!fd.valid() && (errno == ELOOP || errno == ENXIO || errno == ENOENT)) return absl::OkStatus();
  if (!fd.valid()) return walk.Failed("open", path, errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(fmt::format("cannot read {}", path), errno);
  const bool folder = S_ISDIR(info.st_mode);
  if (!folder && (!S_ISREG(info.st_mode) || info.st_nlink != 1)) return absl::OkStatus();
  const std::optional<Owner>& owner = walk.owner;
  if (owner && (info.st_uid != owner->uid || info.st_gid != owner->gid) &&
      fchown(fd.get(), owner->uid, owner->gid) != 0) {
    return ErrnoStatus(fmt::format("cannot change the owner of {}", path), errno);
  }
  if ((info.st_mode & 07777 & ~kOwnersPart) != 0 &&
      fchmod(fd.get(), info.st_mode & kOwnersPart) != 0) {
    SFT_RETURN_IF_ERROR(walk.Failed("change the mode of", path, errno));
  }
  // The depth is limited because other users who may write in the tree choose it.
  if (!folder || depth == kMaxDepth) return absl::OkStatus();
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3)),
                                                    closedir);
  if (entries == nullptr) return ErrnoStatus(fmt::format("cannot list {}", path), errno);
  while (const dirent* entry = readdir(entries.get())) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    SFT_RETURN_IF_ERROR(CloseAt(fd.get(), entry->d_name, fmt::format("{}/{}", path, entry->d_name),
                                walk, depth + 1));
  }
  return absl::OkStatus();
}

// True when only this process's user (or root) can have made the link.
bool IsOwnLink(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return false;
  const size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  return stat(parent.c_str(), &info) == 0 && info.st_uid == geteuid() &&
         (info.st_mode & kWriteOfOthers) == 0;
}

}  // namespace

absl::Status CloseTree(const std::string& path, const std::optional<Owner>& owner) {
  return CloseAt(AT_FDCWD, path.c_str(), path, Walk{owner}, 0);
}

absl::StatusOr<std::vector<std::string>> CloseDataDir(const std::string& path,
                                                      const std::vector<std::string>& names) {
  std::vector<std::string> left;
  struct stat info {};
  for (const std::string& name : names) {
    const std::string child = fmt::format("{}/{}", path, name);
    const auto is_open = [&] {
      return lstat(child.c_str(), &info) == 0 && !S_ISLNK(info.st_mode) && IsOpen(info);
    };
    if (!is_open()) continue;
    SFT_RETURN_IF_ERROR(CloseAt(AT_FDCWD, child.c_str(), child, Walk{std::nullopt, true}, 0));
    if (is_open()) left.push_back(child);
  }
  if (stat(path.c_str(), &info) != 0)
    return ErrnoStatus(fmt::format("cannot read {}", path), errno);
  if (!IsOpen(info) || (info.st_mode & S_ISVTX) != 0) return left;
  if (chmod(path.c_str(), info.st_mode & kOwnersPart) == 0) return left;
  if (!IsOutOfReach(errno)) {
    return ErrnoStatus(fmt::format("cannot change the mode of {}", path), errno);
  }
  left.insert(left.begin(), path);
  return left;
}

std::string OpenToOthers(const std::vector<std::string>& paths) {
  return fmt::format(
      "other users of this machine may get into {}, and this process may not change that: run "
      "`chmod o-rwx {}` as the owner",
      fmt::join(paths, ", "), fmt::join(paths, " "));
}

absl::Status MakeDirAs(const std::string& path, const Owner& owner, mode_t mode) {
  if (mkdir(path.c_str(), kOwnersPart) != 0 && errno != EEXIST) {
    return ErrnoStatus(fmt::format("cannot create the folder {}", path), errno);
  }
  const int no_follow = IsOwnLink(path) ? 0 : O_NOFOLLOW;
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | no_follow | O_CLOEXEC));
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
