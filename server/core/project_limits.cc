#include "server/core/project_limits.h"

#include <fmt/format.h>

#include "server/core/convert.h"
#include "server/store/schedules.h"

namespace sft::server {

std::string PriorityProblem(const ProjectLimits& limits, const JobRecord& job) {
  if (job.priority <= limits.max_priority) return "";
  return fmt::format(
      "project {} may not use {}, but up to {}: ask an operator (sftctl admin project set {} "
      "--max-priority ...)",
      job.project, PriorityName(job.priority), PriorityName(limits.max_priority), job.project);
}

std::string SizeProblem(const ProjectLimits& limits, const JobRecord& job) {
  const int gpus = job.gpus_per_node * job.nodes;
  if (limits.max_gpus == 0 || gpus <= limits.max_gpus) return "";
  return fmt::format("project {} may use {} GPUs at once, the job needs {}", job.project,
                     limits.max_gpus, gpus);
}

absl::Status CheckPending(Database& db, const ProjectLimits& limits, int more) {
  if (limits.max_pending == 0) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const int pending, store::CountPending(db, limits.project));
  if (pending + more <= limits.max_pending) return absl::OkStatus();
  return ResourceExhausted(
      fmt::format("project {} may have {} waiting jobs, and has {}: wait for some to start",
                  limits.project, limits.max_pending, pending));
}

absl::Status CheckLimits(Database& db, const JobRecord& job, int more) {
  SFT_ASSIGN_OR_RETURN(const ProjectLimits limits, store::GetLimits(db, job.project));
  for (const std::string& problem : {PriorityProblem(limits, job), SizeProblem(limits, job)}) {
    if (!problem.empty()) return FailedPrecondition(problem);
  }
  return more > 0 ? CheckPending(db, limits, more) : absl::OkStatus();
}

}  // namespace sft::server
