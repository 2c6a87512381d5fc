#include "server/sched/quota.h"

#include <fmt/format.h>

namespace sft::server::sched {

Quota::Quota(const Snapshot& snapshot) {
  for (const ProjectView& project : snapshot.projects) limits_[project.name] = &project;
  for (const RunningJob& job : snapshot.running) {
    InUse& in_use = projects_[job.project];
    in_use.gpus += job.gpus();
    ++in_use.jobs;
    if (!job.sweep.empty()) ++sweeps_[job.sweep];
  }
}

std::string Quota::Refusal(const PendingJob& job) const {
  const auto sweep = sweeps_.find(job.sweep);
  if (job.sweep_limit > 0 && sweep != sweeps_.end() && sweep->second >= job.sweep_limit) {
    return fmt::format("waiting for other jobs of {}: at most {} of them run at once", job.sweep,
                       job.sweep_limit);
  }
  const auto found = limits_.find(job.project);
  if (found == limits_.end()) return "";
  const ProjectView& limit = *found->second;
  const auto used = projects_.find(job.project);
  const InUse in_use = used == projects_.end() ? InUse() : used->second;
  if (limit.max_gpus > 0 && job.gpus() > limit.max_gpus) {
    return fmt::format("never fits: it needs {} GPUs and project {} may use {} at once", job.gpus(),
                       job.project, limit.max_gpus);
  }
  if (!limit.spent.empty()) return limit.spent;
  if (limit.max_gpus > 0 && in_use.gpus + job.gpus() > limit.max_gpus) {
    return fmt::format("waiting for jobs of project {} to end: it may use {} GPUs at once",
                       job.project, limit.max_gpus);
  }
  if (limit.max_running > 0 && in_use.jobs >= limit.max_running) {
    return fmt::format("waiting for jobs of project {} to end: {} of them may run at once",
                       job.project, limit.max_running);
  }
  return "";
}

void Quota::Add(const PendingJob& job) {
  InUse& in_use = projects_[job.project];
  in_use.gpus += job.gpus();
  ++in_use.jobs;
  if (!job.sweep.empty()) ++sweeps_[job.sweep];
}

}  // namespace sft::server::sched
