#include "server/scheduling/time_limits.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/clock.h"
#include "common/base/duration.h"
#include "server/store/attempts.h"
#include "server/store/jobs.h"
#include "server/store/schedules.h"

namespace sft::server {

int64_t LimitLeft(const ScheduleRecord& schedule) {
  return std::max<int64_t>(0, schedule.time_limit_us - schedule.used_us);
}

int64_t LimitEnd(const AttemptRecord& attempt, const ScheduleRecord& schedule) {
  return attempt.created_us + LimitLeft(schedule);
}

bool IsAtTimeLimit(const LiveJob& live, int64_t age_us) {
  const ScheduleRecord& schedule = live.job.schedule;
  if (schedule.time_limit_us == 0 || live.attempt.state >= AttemptState::kStopping) return false;
  const int64_t left_us = LimitLeft(schedule) - age_us;
  return left_us <= 0 || (!schedule.warned && left_us <= schedule.warn_before_us);
}

absl::Status KeepTimeLimit(Database& db, const LiveJob& live, int64_t age_us, int64_t now_us,
                           ChangedJobs& changed) {
  const auto& [job, seen, members] = live;
  const ScheduleRecord& schedule = job.schedule;
  const int64_t left_us = LimitLeft(schedule) - age_us;
  if (left_us <= 0) {
    const std::string reason =
        fmt::format("its scheduling.time_limit of {} is over",
                    DurationText(std::chrono::microseconds(schedule.time_limit_us)));
    return StopAttempt(db, seen.uid, kTimeLimit, reason, now_us, changed);
  }
  SFT_ASSIGN_OR_RETURN(AttemptRecord attempt, store::GetAttempt(db, seen.uid));
  if (attempt.state >= AttemptState::kStopping) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(store::SetWarned(db, job.id));
  ++attempt.checkpoints_asked;
  attempt.checkpoint_request = kTimeLimit;
  SFT_RETURN_IF_ERROR(store::AskForCheckpoint(db, attempt));
  changed.insert(job.id);
  return store::AddEvent(
      db, job.id,
      {0, now_us, "warning",
       fmt::format("its scheduling.time_limit of {} is over at {}: it writes a checkpoint now, "
                   "and ends then",
                   DurationText(std::chrono::microseconds(schedule.time_limit_us)),
                   FormatUtc(FromUnixMicros(now_us + left_us))),
       job.attempt});
}

}  // namespace sft::server
