#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/sched/snapshot.h"

// Who is next. Jobs stand by class; a job that has waited for kOldAfterUs stands before the normal
// class, so that no class but those above it keeps it waiting for ever. Within a class, and among
// the old, the projects take turns: next is the oldest job of the project that has had the least
// GPU time for its share, where a running or waiting job counts with the time it is expected to
// take as soon as it is placed or stands in the line (a burst of submits gains nothing). So each
// project goes on through its own jobs in their order, whatever the others submit.

namespace sft::server::sched {

inline constexpr int64_t kSecondUs = 1'000'000, kHourUs = 3600 * kSecondUs, kDayUs = 24 * kHourUs;
inline constexpr int64_t kOldAfterUs = 3 * kDayUs;
// GPU time weighs half as much after so long: longer than gangs run, so that a project that had
// much while others asked for little gives it back when they do.
inline constexpr int64_t kUsageHalfLifeUs = 30 * kDayUs;
// What a job counts with whose run time nobody can tell.
inline constexpr int64_t kUnknownRunUs = kHourUs;

// Where jobs stand; the numbers of classes with the old between them.
enum class Level : int { kLow = 0, kNormal = 1, kOld = 2, kHigh = 3, kUrgent = 4 };
inline constexpr int kLevels = 5;
Level LevelOf(const PendingJob& job, int64_t now_us);

// GPU time that was used at `at_us`, as it weighs at `now_us`.
double Decayed(double usage_us, int64_t at_us, int64_t now_us);

// GPU time that each project has had for its share, what runs to its expected end included. The
// snapshot is borrowed.
class Usage {
 public:
  explicit Usage(const Snapshot& snapshot);
  double Of(std::string_view project);
  // Counts a job as run.
  void Charge(const PendingJob& job);

 private:
  struct Account {
    double share = 1;
    double used = 0;
  };
  std::map<std::string_view, Account> accounts_;
};

// A job of the line: its index in Snapshot::pending, and where it stands.
struct Standing {
  size_t index = 0;
  Level level = Level::kNormal;
};

// All jobs that may be placed (PendingJob::blocked is empty), who is next first.
std::vector<Standing> MakeLine(const Snapshot& snapshot);

}  // namespace sft::server::sched
