#pragma once

#include <string>
#include <vector>

#include "server/sched/decide.h"
#include "server/sched/order.h"
#include "tests/unit/server/sched/decide_testing.h"

namespace sft::server::sched {

inline constexpr int64_t kHour = kHourUs, kNow = 1000 * kHour;

// A job with the times that the scheduler uses.
inline PendingJob Timed(const std::string& id, int slots, int64_t hours, int nodes = 1) {
  PendingJob job = Job(id, "H100", slots, nodes);
  job.submitted_us = kNow;
  job.expected_us = hours * kHour;
  job.bound_us = hours * kHour;
  return job;
}

// Snapshots whose running jobs are listed, not only visible as holders of slots.
struct World {
  Snapshot snapshot;

  World() { snapshot.now_us = kNow; }
  World& Add(const std::string& node, int slots) {
    snapshot.nodes.push_back(Node(node, "H100", slots));
    return *this;
  }
  // Runs on the first free slots of a node.
  RunningJob& Run(const std::string& id, const std::string& node, int slots, int64_t hours,
                  int priority = kNormal) {
    RunningJob job;
    job.id = id;
    job.gpu_type = "H100";
    job.priority = priority;
    job.started_us = kNow - kHour;
    job.expected_end_us = job.bound_end_us = kNow + hours * kHour;
    Part part{node, {}};
    for (NodeView& each : snapshot.nodes) {
      if (each.name != node) continue;
      for (SlotView& slot : each.slots) {
        if (!slot.job.empty() || static_cast<int>(part.slots.size()) == slots) continue;
        slot.job = id;
        part.slots.push_back(slot.index);
      }
    }
    job.parts.push_back(part);
    snapshot.running.push_back(job);
    return snapshot.running.back();
  }
  PendingJob& Wait(PendingJob job) {
    snapshot.pending.push_back(std::move(job));
    return snapshot.pending.back();
  }
  std::vector<std::string> Placed() const {
    std::vector<std::string> jobs;
    for (const Placement& placement : Decide(snapshot).placements) jobs.push_back(placement.job);
    return jobs;
  }
  Waiting Of(const std::string& id) const {
    for (const Waiting& waiting : Decide(snapshot).waiting) {
      if (waiting.job == id) return waiting;
    }
    return {};
  }
};

}  // namespace sft::server::sched
