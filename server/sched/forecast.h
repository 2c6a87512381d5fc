#pragma once

#include <cstdint>
#include <vector>

#include "server/sched/fleet.h"
#include "server/sched/snapshot.h"

// Forecasts when waiting jobs will start: running jobs end when they are expected to (not at their
// upper bound), and each queued job takes the earliest room that those before it leave. Future
// submits are not part of it.

namespace sft::server::sched {

// A job past its bound or expectation counts as ending after this time.
inline constexpr int64_t kOverdueUs = 600'000'000;

// The forecast of one decision.
class Forecast {
 public:
  // A queued job, in queue order.
  struct Entry {
    const PendingJob* job = nullptr;
    bool placed = false;
    int64_t promised_us = kForever;  // it starts no later than this
  };
  struct Expected {
    int64_t start_us = 0, end_us = 0;  // 0: not known
  };

  // Simulates the first `max` entries; later ones are estimated from the work ahead of them.
  Forecast(const Snapshot& snapshot, const std::vector<Placement>& placements,
           const std::vector<Preemption>& preemptions, const std::vector<Entry>& entries, int max);

  Expected of(size_t entry) const { return expected_[entry]; }

 private:
  // State of the slots of one type.
  struct Type {
    // A job further ahead has an unknown run time, so the starts behind it are unknown too.
    bool unknown = false;
    double work_us = 0;  // GPU time of the jobs ahead
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
