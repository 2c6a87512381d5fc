#include "server/scheduling/live_jobs.h"

#include "server/store/attempts.h"
#include "server/store/jobs.h"
#include "server/store/schedules.h"

namespace sft::server {

absl::StatusOr<std::vector<LiveJob>> LoadLive(Database& db) {
  SFT_ASSIGN_OR_RETURN(std::vector<JobRecord> jobs, store::LiveJobs(db));
  std::vector<LiveJob> live;
  for (JobRecord& job : jobs) {
    SFT_ASSIGN_OR_RETURN(auto attempt, store::AttemptOfJob(db, job.id, job.attempt));
    if (!attempt.has_value()) continue;
    // One that answers with a checkpoint counts its answers from 0.
    if (job.kind != v1::Job::SFT) attempt->resume_step = 0;
    SFT_ASSIGN_OR_RETURN(job.schedule, store::GetSchedule(db, job.id));
    SFT_ASSIGN_OR_RETURN(std::vector<MemberRecord> members, store::MembersOf(db, attempt->uid));
    live.push_back({std::move(job), *std::move(attempt), std::move(members)});
  }
  return live;
}

}  // namespace sft::server
