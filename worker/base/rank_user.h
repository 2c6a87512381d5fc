#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

// The user that ranks run as where the worker runs as root. Ranks work on users' files and may be
// led by them; what they could do as root, they cannot as this user. The same holds for the worker
// where it works on files that ranks write or that jobs name: it does so with the rights of ranks
// (RankRights), so that a link or a swapped folder leads it nowhere that ranks could not go
// themselves.

namespace sft::worker {

struct NodeSetup;

// What is said where they run as root and nobody chose it, and what ends it.
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
  // HOME, USER and LOGNAME of its programs.
  std::vector<std::string> Environment() const;
};

// Whom --rank-user stands for; none: ranks run as the worker does, as user `self`. Without the
// option that is the user sft-rank for a worker of root, should the machine have it (not sft, whom
// server and worker may run as); a development worker's ranks stay root, as its folders lie
// anywhere.
absl::StatusOr<std::optional<RankUser>> ChooseRankUser(const std::string& option, bool dev,
                                                       uid_t self);
// The user of a number, by name and groups where the machine knows it.
RankUser RankUserOf(uid_t uid, gid_t gid);

// This thread opens, makes, lists and removes files as the user for as long as this lives; without
// a user it changes nothing. Threads that are started meanwhile would stay so: no call to the
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

// Between fork and exec: this process becomes the user, for good and without a way to more rights.
// The errno of what failed; 0: done. Safe after a fork of a process with many threads.
int BecomeRankUser(const RankUser& user);

// A file of the worker's, in a folder where nobody else may rename anything: ranks may read it.
absl::Status LetRanksRead(const std::string& path, const std::optional<RankUser>& user);
// A folder, made should it be missing, in which ranks may make files beside the worker's own, which
// they cannot touch.
absl::Status LetRanksWrite(const std::string& dir, const std::optional<RankUser>& user);
// As that, and gives ranks what lies in it: checkpoints that an earlier user or the worker wrote.
// Folders whose names end so stay the worker's.
inline constexpr char kFetchSuffix[] = ".fetch", kReplacedSuffix[] = ".old";
absl::Status GiveToRanks(const std::string& dir, const std::optional<RankUser>& user);

// The data folder and those that all attempts share, each as open as ranks need it and no further;
// what an earlier release left open to everybody is closed.
absl::Status PrepareDataDir(const NodeSetup& setup);
// Whether ranks get as far as the data folder; whether they can write to the shared one. Errors say
// what to do.
absl::Status CheckDataDirFor(const NodeSetup& setup);
absl::Status CheckSharedFor(const NodeSetup& setup);
// A file can be made in the folder, and goes again.
absl::Status TryWrite(const std::string& folder);
// The hub caches that are there, for the worker's eyes; most machines have none.
std::vector<std::string> HubsHere(const NodeSetup& setup);
// The folder can be listed and entered.
absl::Status TryRead(const std::string& folder);

}  // namespace sft::worker
