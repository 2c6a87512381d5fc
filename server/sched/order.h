#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/sched/snapshot.h"

// Order of the queue. Jobs are ordered by class; a job that has waited for kOldAfterUs goes before
// the normal class, so that only higher classes can keep it waiting for ever. Within a class, and
// among the old jobs, projects take turns (fair share): next is the oldest job of the project that
// has had the least GPU time for its share, where a running or waiting job counts with its expected
// run time as soon as it is placed or queued (a burst of submits gains nothing). Each project
// therefore goes through its own jobs in their order, whatever the others submit.

namespace sft::server::sched {

inline constexpr int64_t kSecondUs = 1'000'000, kHourUs = 3600 * kSecondUs, kDayUs = 24 * kHourUs;
inline constexpr int64_t kOldAfterUs = 3 * kDayUs;
// Half-life of the weight of GPU time: longer than gangs run, so that a project that had much while
// others asked for little gives it back when they do.
inline constexpr int64_t kUsageHalfLifeUs = 30 * kDayUs;
// The run time assumed for a job whose run time is unknown.
inline constexpr int64_t kUnknownRunUs = kHourUs;

// Levels of the queue: the numbers of the classes, with the old jobs between them.
enum class Level : int { kLow = 0, kNormal = 1, kOld = 2, kHigh = 3, kUrgent = 4 };
inline constexpr int kLevels = 5;
Level LevelOf(const PendingJob& job, int64_t now_us);

// GPU time used at `at_us`, decayed to `now_us`.
double Decayed(double usage_us, int64_t at_us, int64_t now_us);

// GPU time that each project has had for its share, running jobs included up to their expected end.
// The snapshot is borrowed.
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

// A queued job: its index in Snapshot::pending, and its level.
struct Standing {
  size_t index = 0;
  Level level = Level::kNormal;
};

// All jobs that may be placed (PendingJob::blocked is empty), the next one first.
std::vector<Standing> MakeLine(const Snapshot& snapshot);

}  // namespace sft::server::sched
