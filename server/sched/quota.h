#pragma once

#include <map>
#include <string>
#include <string_view>

#include "server/sched/snapshot.h"

namespace sft::server::sched {

// Usage of projects and sweeps against their limits.
class Quota {
 public:
  explicit Quota(const Snapshot& snapshot);

  // Why the job may not start beside the running jobs of its project and sweep; empty: it may.
  std::string Refusal(const PendingJob& job) const;
  // Counts a job that starts.
  void Add(const PendingJob& job);

 private:
  struct InUse {
    int gpus = 0, jobs = 0;
  };
  std::map<std::string_view, const ProjectView*> limits_;
  std::map<std::string_view, InUse> projects_;
  std::map<std::string_view, int> sweeps_;  // running jobs
};

}  // namespace sft::server::sched
