#pragma once

#include <cstdint>
#include <vector>

#include "server/sched/fleet.h"
#include "server/sched/snapshot.h"

// When waiting jobs will start: what runs ends when it is expected to (not at its upper bound), and
// each job of the line takes the earliest room that those before it leave. Jobs that are still to
// be submitted are not in it.

namespace sft::server::sched {

// What runs longer than its bound or expectation counts as ending after this.
inline constexpr int64_t kOverdueUs = 600'000'000;

// The forecast of one decision.
class Forecast {
 public:
  // A job of the line, in its order.
  struct Entry {
    const PendingJob* job = nullptr;
    bool placed = false;
    int64_t promised_us = kForever;  // it starts by then
  };
  struct Expected {
    int64_t start_us = 0, end_us = 0;  // 0: not known
  };

  // Of the first `max` entries by a timeline; of later ones by the work that stands before them.
  Forecast(const Snapshot& snapshot, const std::vector<Placement>& placements,
           const std::vector<Preemption>& preemptions, const std::vector<Entry>& entries, int max);

  Expected of(size_t entry) const { return expected_[entry]; }

 private:
  // Of the slots of one type.
  struct Type {
    // Somebody before has a run time that nobody can tell: so are the starts behind it.
    bool unknown = false;
    double work_us = 0;  // GPU time that stands before
    int slots = 0;
  };
  void HoldRunning(const Snapshot& snapshot, const std::vector<Preemption>& preemptions);
  void HoldPlaced(const std::vector<Placement>& placements, const std::vector<Entry>& entries);

  const int64_t now_;
  Fleet fleet_;
  std::vector<Type> types_;
  std::vector<Expected> expected_;
};

}  // namespace sft::server::sched
