#include "worker/base/rank_user.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <spdlog/spdlog.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "common/io/file.h"
#include "common/io/tree.h"
#include "worker/base/setup.h"

namespace sft::worker {
namespace {

constexpr char kDefaultUser[] = "sft-rank";
// Ranks may pass through; only the worker may list.
constexpr mode_t kPassage = 0710;
// Everybody in the group may make files; only their owners rename or remove them.
constexpr mode_t kCommon = 01770;
constexpr mode_t kOfRanks = 0700;
constexpr mode_t kReadable = 0640;

// Names of everything that the worker makes in a data folder.
std::vector<std::string> OwnNames(const NodeSetup& setup) {
  std::vector<std::string> names = {"attempts", "cache", "checkpoints", "datasets",
                                    "id",       "run",   "tls",         "worker.lock"};
  // With --shared, a folder of that name is the operator's, maybe a mount.
  if (!setup.has_shared) names.emplace_back("shared");
  return names;
}

// With all links resolved; a path that does not exist stays as it is.
std::string Resolved(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  return error ? path : real.string();
}

io::Owner OwnerOf(const RankUser& user) { return {user.uid, user.gid}; }
// The worker as owner, with the ranks' group.
io::Owner WithGroupOf(const RankUser& user) { return {geteuid(), user.gid}; }

RankUser FromEntry(const passwd& entry) {
  RankUser user{entry.pw_name, entry.pw_uid, entry.pw_gid, {}, entry.pw_dir};
  int count = 64;
  user.groups.resize(static_cast<size_t>(count));
  if (getgrouplist(entry.pw_name, entry.pw_gid, user.groups.data(), &count) < 0) {
    user.groups.resize(static_cast<size_t>(count));
    getgrouplist(entry.pw_name, entry.pw_gid, user.groups.data(), &count);
  }
  user.groups.resize(static_cast<size_t>(std::max(count, 0)));
  return user;
}

std::optional<RankUser> FindUser(const std::string& name) {
  std::array<char, 16384> buffer;
  passwd entry{};
  passwd* found = nullptr;
  getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) return std::nullopt;
  return FromEntry(entry);
}

// Changes the groups of this thread only: the C library's functions change all threads.
int SetThreadGroups(const std::vector<gid_t>& groups) {
  return static_cast<int>(syscall(SYS_setgroups, groups.size(), groups.data()));
}

// An invalid number makes these calls return the current one, which shows after a change whether it
// worked.
uid_t CurrentUid() { return static_cast<uid_t>(setfsuid(static_cast<uid_t>(-1))); }
gid_t CurrentGid() { return static_cast<gid_t>(setfsgid(static_cast<gid_t>(-1))); }

[[noreturn]] void Die(const char* what) {
  // Continuing would be with more rights than ranks have.
  spdlog::critical("{}: {}", what, strerror(errno));
  std::abort();
}

// True when RankRights would work; checked in this thread only.
bool MayChangeUsers(const RankUser& user) {
  const uid_t own = CurrentUid();
  setfsuid(user.uid);
  const bool changed = CurrentUid() == user.uid;
  setfsuid(own);
  std::vector<gid_t> groups(static_cast<size_t>(std::max(getgroups(0, nullptr), 0)));
  getgroups(static_cast<int>(groups.size()), groups.data());
  return changed && SetThreadGroups(groups) == 0;
}

// The folder on the way to `path` that the current rights cannot pass; empty: none.
std::string ClosedParent(const std::string& path) {
  std::filesystem::path so_far;
  for (const auto& part : std::filesystem::path(path)) {
    so_far /= part;
    struct stat info {};
    if (stat((so_far / ".").c_str(), &info) != 0 && errno == EACCES) return so_far.string();
  }
  return "";
}

}  // namespace

std::string RankUser::Describe() const { return fmt::format("{} (uid {})", name, uid); }

std::vector<std::string> RankUser::Environment() const {
  return {"HOME=" + home, "USER=" + name, "LOGNAME=" + name};
}

absl::StatusOr<std::optional<RankUser>> ChooseRankUser(const std::string& option, bool dev,
                                                       uid_t self) {
  if (option.empty() && (self != 0 || dev)) return std::nullopt;
  std::optional<RankUser> user = FindUser(option.empty() ? kDefaultUser : option);
  if (!user && option.empty()) return std::nullopt;
  if (!user) {
    return InvalidArgument(
        fmt::format("--rank-user {}: this machine has no such user; make it with `useradd --system "
                    "--user-group --shell /usr/sbin/nologin {}`",
                    option, option));
  }
  if (user->uid == self) return std::nullopt;
  if (self != 0) {
    return InvalidArgument(
        fmt::format("--rank-user {}: only a worker that runs as root can start ranks as another "
                    "user, and this one runs as {}: start it as root, or leave the option out",
                    option, RankUserOf(self, self).Describe()));
  }
  if (std::ranges::find(user->groups, gid_t{0}) != user->groups.end()) {
    return InvalidArgument(
        fmt::format("--rank-user {}: this user is in root's group, whose files ranks shall not "
                    "reach: take it out of the group, or name another user",
                    user->name));
  }
  if (!MayChangeUsers(*user)) {
    return FailedPrecondition(fmt::format(
        "ranks are to run as user {}, and this worker may not change users: give its container "
        "CAP_SETUID and CAP_SETGID, or keep ranks as root with `--rank-user root`",
        user->Describe()));
  }
  return user;
}

RankUser RankUserOf(uid_t uid, gid_t gid) {
  std::array<char, 16384> buffer;
  passwd entry{};
  passwd* found = nullptr;
  getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return FromEntry(entry);
  return {std::to_string(uid), uid, gid, {gid}, "/"};
}

RankRights::RankRights(const std::optional<RankUser>& user) {
  if (!user) return;
  uid_ = CurrentUid();
  if (uid_ == user->uid) return;  // nested in another RankRights
  gid_ = CurrentGid();
  groups_.resize(static_cast<size_t>(std::max(getgroups(0, nullptr), 0)));
  if (!groups_.empty() && getgroups(static_cast<int>(groups_.size()), groups_.data()) < 0) {
    Die("cannot read the groups of a thread");
  }
  if (SetThreadGroups(user->groups) != 0) Die("cannot take the groups of ranks");
  setfsgid(user->gid);
  setfsuid(user->uid);
  if (CurrentUid() != user->uid || CurrentGid() != user->gid)
    Die("cannot take the rights of ranks");
  changed_ = true;
}

RankRights::~RankRights() {
  if (!changed_) return;
  setfsuid(uid_);
  setfsgid(gid_);
  if (SetThreadGroups(groups_) != 0 || CurrentUid() != uid_ || CurrentGid() != gid_) {
    Die("cannot take a thread's own rights again");
  }
}

int BecomeRankUser(const RankUser& user) {
  // Direct system calls: the C library's functions would signal threads that do not exist after a
  // fork.
  const bool done = syscall(SYS_setgroups, user.groups.size(), user.groups.data()) == 0 &&
                    syscall(SYS_setresgid, user.gid, user.gid, user.gid) == 0 &&
                    syscall(SYS_setresuid, user.uid, user.uid, user.uid) == 0 &&
                    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
  return done ? 0 : errno;
}

absl::Status LetRanksRead(const std::string& path, const std::optional<RankUser>& user) {
  if (!user) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path, io::Links::kRefuse));
  const io::Owner owner = WithGroupOf(*user);
  struct stat info {};
  // Setting an unchanged owner or mode would still change the file's ctime.
  if (fstat(fd.get(), &info) == 0 && info.st_uid == owner.uid && info.st_gid == owner.gid &&
      (info.st_mode & 07777) == kReadable) {
    return absl::OkStatus();
  }
  if (fchown(fd.get(), owner.uid, owner.gid) != 0 || fchmod(fd.get(), kReadable) != 0) {
    return ErrnoStatus(fmt::format("cannot let ranks read {}", path), errno);
  }
  return absl::OkStatus();
}

absl::Status LetRanksWrite(const std::string& dir, const std::optional<RankUser>& user) {
  return user ? io::MakeDirAs(dir, WithGroupOf(*user), kCommon) : io::MakeDirs(dir);
}

absl::Status GiveToRanks(const std::string& dir, const std::optional<RankUser>& user) {
  SFT_RETURN_IF_ERROR(LetRanksWrite(dir, user));
  if (!user) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(dir));
  for (const std::string& name : names) {
    // The worker's own: a checkpoint being downloaded, and one that it replaces.
    if (name.ends_with(kFetchSuffix) || name.ends_with(kReplacedSuffix)) continue;
    SFT_RETURN_IF_ERROR(io::CloseTree(fmt::format("{}/{}", dir, name), OwnerOf(*user)));
  }
  return absl::OkStatus();
}

absl::Status PrepareDataDir(const NodeSetup& setup) {
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> left,
                       io::CloseDataDir(setup.data_dir, OwnNames(setup)));
  if (!left.empty()) spdlog::warn("{}", io::OpenToOthers(left));
  if (!setup.rank_user) return absl::OkStatus();
  const RankUser& user = *setup.rank_user;
  struct stat info {};
  if (stat(setup.data_dir.c_str(), &info) != 0) {
    return ErrnoStatus(fmt::format("cannot read {}", setup.data_dir), errno);
  }
  if ((info.st_mode & S_ISVTX) != 0) {
    return FailedPrecondition(
        fmt::format("--data-dir {}: all users share this folder; give a folder of the worker's own",
                    setup.data_dir));
  }
  if (info.st_uid != geteuid()) {
    return FailedPrecondition(
        fmt::format("--data-dir {}: it belongs to user {}, and this worker runs as root with ranks "
                    "as {}: when none of its jobs run, `chown -R root:root {}`, or start the "
                    "worker as that user",
                    setup.data_dir, RankUserOf(info.st_uid, info.st_gid).Describe(),
                    user.Describe(), setup.data_dir));
  }
  SFT_RETURN_IF_ERROR(io::MakeDirAs(Resolved(setup.data_dir), WithGroupOf(user), kPassage));
  for (const char* name : {"attempts", "checkpoints", "datasets"}) {
    SFT_RETURN_IF_ERROR(
        io::MakeDirAs(fmt::format("{}/{}", setup.data_dir, name), WithGroupOf(user), kPassage));
  }
  SFT_RETURN_IF_ERROR(LetRanksWrite(setup.data_dir + "/run", user));
  std::vector<std::string> of_ranks = {setup.data_dir + "/cache"};
  if (!setup.has_shared) of_ranks.push_back(setup.shared_dir);
  for (const std::string& dir : of_ranks) {
    SFT_RETURN_IF_ERROR(io::MakeDirAs(dir, OwnerOf(user), kOfRanks));
    SFT_RETURN_IF_ERROR(io::CloseTree(Resolved(dir), OwnerOf(user)));
  }
  return absl::OkStatus();
}

absl::Status TryWrite(const std::string& folder) {
  const std::string path = fmt::format("{}/.sft-check-{}", folder, getpid());
  SFT_RETURN_IF_ERROR(io::WriteFileAtomic(path, "check"));
  return io::RemoveAll(path);
}

std::vector<std::string> HubsHere(const NodeSetup& setup) {
  std::vector<std::string> here;
  std::ranges::copy_if(setup.hub_dirs, std::back_inserter(here), io::IsDirectory);
  return here;
}

absl::Status TryRead(const std::string& folder) {
  struct stat info {};
  SFT_RETURN_IF_ERROR(io::ListDir(folder).status());
  if (stat((folder + "/.").c_str(), &info) == 0) return absl::OkStatus();
  return ErrnoStatus(fmt::format("cannot enter {}", folder), errno);
}

absl::Status CheckDataDirFor(const NodeSetup& setup) {
  const std::string data_dir = Resolved(setup.data_dir);
  const RankRights rights(setup.rank_user);
  std::string closed = ClosedParent(std::filesystem::path(setup.data_dir).parent_path().string());
  if (closed.empty()) closed = ClosedParent(std::filesystem::path(data_dir).parent_path().string());
  if (closed.empty()) return absl::OkStatus();
  return FailedPrecondition(fmt::format(
      "ranks run as user {}, who may not enter {}, in which the data folder is: `chmod o+x {}`, or "
      "give a --data-dir elsewhere",
      setup.rank_user ? setup.rank_user->Describe() : "of the worker", closed, closed));
}

absl::Status CheckSharedFor(const NodeSetup& setup) {
  const RankRights rights(setup.rank_user);
  const absl::Status wrote = TryWrite(setup.shared_dir);
  if (wrote.ok() || !setup.rank_user) return wrote;
  return FailedPrecondition(fmt::format(
      "ranks run as user {}, who cannot write there: {}; `chown -R {} {}` where that is "
      "allowed: the user has to have the same number on all nodes",
      setup.rank_user->Describe(), Message(wrote), setup.rank_user->name, setup.shared_dir));
}

}  // namespace sft::worker
