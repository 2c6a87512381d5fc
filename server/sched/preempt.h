#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/sched/fleet.h"
#include "server/sched/snapshot.h"

// Preemption: which running jobs make room for one of a higher class. A job only ever stops jobs of
// classes strictly below its own, so no two can stop each other in turn, however often this runs.

namespace sft::server::sched {

// A job that would start by itself within this time preempts nobody.
inline constexpr int64_t kPatienceUs = 300'000'000;
// Time that a job needs to end after it was told to: it writes a checkpoint first.
inline constexpr int64_t kStopUs = 120'000'000;

// GPU time that must be repeated when the job is stopped at `now_us`.
int64_t LostWork(const RunningJob& job, int64_t now_us);

// The jobs to stop, and where the waiting job then fits.
struct Room {
  std::vector<const RunningJob*> victims;  // empty: preemption does not help
  std::vector<int> bins;
};

// Chooses the nodes on which the least work is lost, and a minimal set of jobs there: none of them
// can be left out. `JobsByBin` maps a bin to the jobs that hold slots of it.
using JobsByBin = std::map<int, std::vector<const RunningJob*>>;
Room MakeRoom(const PendingJob& job, const Shape& shape, const Fleet& fleet, const JobsByBin& jobs,
              int64_t now_us);

}  // namespace sft::server::sched
