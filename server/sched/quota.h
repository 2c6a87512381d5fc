#pragma once

#include <map>
#include <string>
#include <string_view>

#include "server/sched/snapshot.h"

namespace sft::server::sched {

// What projects and sweeps have in use, against what they may.
class Quota {
 public:
  explicit Quota(const Snapshot& snapshot);

  // Why the job may not start beside what runs of its project and sweep; empty: it may.
  std::string Refusal(const PendingJob& job) const;
  // The job starts.
  void Add(const PendingJob& job);

 private:
  struct InUse {
    int gpus = 0, jobs = 0;
  };
  std::map<std::string_view, const ProjectView*> limits_;
  std::map<std::string_view, InUse> projects_;
  std::map<std::string_view, int> sweeps_;  // jobs
};

}  // namespace sft::server::sched
