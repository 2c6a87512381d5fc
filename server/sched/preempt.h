#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/sched/fleet.h"
#include "server/sched/snapshot.h"

// Which running jobs make room for one of a higher class. A job only ever stops jobs of classes
// strictly below its own, so no two can stop each other in turn, however often that is asked.

namespace sft::server::sched {

// A job that would start by itself within this time stops nobody.
inline constexpr int64_t kPatienceUs = 300'000'000;
// What a job takes that was told to end: it writes a checkpoint first.
inline constexpr int64_t kStopUs = 120'000'000;

// GPU time that is done again when the job is stopped at `now_us`.
int64_t LostWork(const RunningJob& job, int64_t now_us);

// What has to stop, and where the job then fits.
struct Room {
  std::vector<const RunningJob*> victims;  // empty: nothing can be done
  std::vector<int> bins;
};

// The nodes on which the least work is lost, and of the jobs there the fewest that are needed: none
// of them can be left out. Jobs by bin are those that hold slots of it.
using JobsByBin = std::map<int, std::vector<const RunningJob*>>;
Room MakeRoom(const PendingJob& job, const Shape& shape, const Fleet& fleet, const JobsByBin& jobs,
              int64_t now_us);

}  // namespace sft::server::sched
