#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

// The user that ranks run as when the worker runs as root. Ranks work on users' files, which may be
// hostile; as this user they lack root's rights. The worker itself uses the ranks' rights
// (RankRights) where it works on files that ranks write or that jobs name, so that a link or a
// swapped folder leads it nowhere that ranks could not go themselves.

namespace sft::worker {

struct NodeSetup;

// The warning shown where ranks run as root and nobody chose that, with the remedy.
inline constexpr char kRanksAreRoot[] =
    "this worker runs as root, and so do its ranks, which work on users' files";
inline constexpr char kMakeRankUser[] =
    "make a user for them with `useradd --system --user-group --shell /usr/sbin/nologin sft-rank` "
    "and start the worker again, with --rank-user sft-rank if it has --dev; --rank-user root keeps "
    "ranks as root and this silent";

// A user of this machine.
struct RankUser {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // all of the user's groups, `gid` among them
  std::string home;

  // "sft-rank (uid 998)"
  std::string Describe() const;
  // HOME, USER and LOGNAME for its programs.
  std::vector<std::string> Environment() const;
};

// The user that --rank-user names; none: ranks run as the worker does, as user `self`. Without the
// option it is the user sft-rank for a worker of root, if the machine has it (not sft, which server
// and worker may run as); a development worker's ranks stay root, because its folders may lie
// anywhere.
absl::StatusOr<std::optional<RankUser>> ChooseRankUser(const std::string& option, bool dev,
                                                       uid_t self);
// The user with these numbers; name and groups where the machine knows them.
RankUser RankUserOf(uid_t uid, gid_t gid);

// While this lives, the calling thread opens, makes, lists and removes files as the user; without a
// user it changes nothing. Threads started meanwhile would keep the rights, so do not call the
// server in its scope.
class RankRights {
 public:
  explicit RankRights(const std::optional<RankUser>& user);
  ~RankRights();
  RankRights(const RankRights&) = delete;
  RankRights& operator=(const RankRights&) = delete;

 private:
  bool changed_ = false;
  uid_t uid_ = 0;
  gid_t gid_ = 0;
  std::vector<gid_t> groups_;
};

// Called between fork and exec: this process becomes the user, permanently and unable to gain
// privileges. Returns the errno of a failure; 0: done. Safe after a fork of a process with many
// threads.
int BecomeRankUser(const RankUser& user);

// Lets ranks read a file of the worker's, in a folder where nobody else may rename anything.
absl::Status LetRanksRead(const std::string& path, const std::optional<RankUser>& user);
// Makes a folder, if it is missing, in which ranks may make files beside the worker's own, which
// they cannot touch.
absl::Status LetRanksWrite(const std::string& dir, const std::optional<RankUser>& user);
// The same, and gives ranks the files in it: checkpoints that an earlier user or the worker wrote.
// Folders with these suffixes stay the worker's.
inline constexpr char kFetchSuffix[] = ".fetch", kReplacedSuffix[] = ".old";
absl::Status GiveToRanks(const std::string& dir, const std::optional<RankUser>& user);

// Prepares the data folder and those that all attempts share, each as open as ranks need it and no
// further; folders that an earlier release left open to everybody are closed.
absl::Status PrepareDataDir(const NodeSetup& setup);
// Checks that ranks can reach the data folder, and can write to the shared one. Errors say what to
// do.
absl::Status CheckDataDirFor(const NodeSetup& setup);
absl::Status CheckSharedFor(const NodeSetup& setup);
// Checks that a file can be made in the folder, by making and removing one.
absl::Status TryWrite(const std::string& folder);
// The existing hub caches, as the worker sees them; most machines have none.
std::vector<std::string> HubsHere(const NodeSetup& setup);
// Checks that the folder can be listed and entered.
absl::Status TryRead(const std::string& folder);

}  // namespace sft::worker
