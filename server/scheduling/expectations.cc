#include "server/scheduling/expectations.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "server/core/convert.h"
#include "server/scheduling/time_limits.h"
#include "server/store/attempts.h"
#include "server/store/schedules.h"

namespace sft::server {
namespace {

// From these steps on, measurements are better than the plan.
constexpr int64_t kMeasuredSteps = 5, kSettledSteps = 50;

}  // namespace

int64_t PlannedLeft(const ScheduleRecord& schedule, int64_t step) {
  if (schedule.planned_us == 0 || schedule.planned_steps == 0) return schedule.planned_us;
  const auto left = static_cast<double>(std::max<int64_t>(0, schedule.planned_steps - step)) /
                    static_cast<double>(schedule.planned_steps);
  return std::max<int64_t>(1,
                           static_cast<int64_t>(static_cast<double>(schedule.planned_us) * left));
}

int64_t ExpectedEnd(const AttemptRecord& attempt, const ScheduleRecord& schedule, int64_t now_us,
                    bool* measured) {
  const Progress& progress = attempt.progress;
  const int64_t made = progress.step - attempt.resume_step;
  int64_t end = 0;
  if (measured != nullptr) *measured = made >= kMeasuredSteps;
  if (made >= kMeasuredSteps && progress.total_steps >= progress.step) {
    const int64_t left = progress.total_steps - progress.step;
    // With few steps, the last one is as good as their mean, which also counts the time until they
    // were reported.
    const int64_t paced = progress.step - attempt.paced_step;
    double left_us = progress.eta_seconds * 1e6;
    if (attempt.paced_us > 0 && (paced >= kMeasuredSteps || left_us <= 0)) {
      left_us = static_cast<double>(now_us - attempt.paced_us) /
                static_cast<double>(std::max<int64_t>(1, paced)) * static_cast<double>(left);
    }
    end = now_us + static_cast<int64_t>(left_us);
  } else if (const int64_t planned = PlannedLeft(schedule, attempt.resume_step); planned > 0) {
    end = attempt.created_us + planned;
  }
  if (end > 0 && schedule.time_limit_us > 0) end = std::min(end, LimitEnd(attempt, schedule));
  return end;
}

Outlooks::Map ExpectJobs(const sched::Decision& decision, const std::vector<LiveJob>& live,
                         int64_t now_us) {
  Outlooks::Map outlooks;
  for (const sched::Waiting& waiting : decision.waiting) {
    v1::Outlook& outlook = outlooks[waiting.job];
    outlook.set_place(waiting.place);
    outlook.set_source("plan");
    outlook.set_lacks_slots(waiting.lacks_slots);
    if (waiting.start_us > 0) *outlook.mutable_start_time() = ToTimestamp(waiting.start_us);
    if (waiting.end_us > 0) *outlook.mutable_end_time() = ToTimestamp(waiting.end_us);
    if (!waiting.promised.empty()) {
      *outlook.mutable_promised_start_time() = ToTimestamp(waiting.promised.start_us);
    }
  }
  for (const auto& [job, attempt, members] : live) {
    bool measured = false;
    const int64_t end = ExpectedEnd(attempt, job.schedule, now_us, &measured);
    if (end == 0 || attempt.state >= AttemptState::kStopping) continue;
    v1::Outlook& outlook = outlooks[job.id];
    *outlook.mutable_end_time() = ToTimestamp(end);
    outlook.set_source(measured ? "measured" : "plan");
  }
  return outlooks;
}

std::vector<EstimateRecord> FirstEstimates(const sched::Snapshot& snapshot,
                                           const sched::Decision& decision, int64_t now_us) {
  std::vector<EstimateRecord> estimates;
  std::map<std::string_view, const sched::PendingJob*> pending;
  for (const sched::PendingJob& job : snapshot.pending) pending[job.id] = &job;
  const auto add = [&](const sched::PendingJob& job, int64_t start_us, int64_t end_us) {
    if (start_us == 0) return;
    EstimateRecord& record = estimates.emplace_back();
    record.job_id = job.id;
    record.project = job.project;
    record.gpu_type = job.gpu_type;
    record.gpus = job.gpus();
    record.submitted_us = job.submitted_us;
    record.start_us = start_us;
    record.end_us = end_us;
  };
  for (const sched::Waiting& waiting : decision.waiting) {
    add(*pending.at(waiting.job), waiting.start_us, waiting.end_us);
  }
  for (const sched::Placement& placement : decision.placements) {
    const sched::PendingJob& job = *pending.at(placement.job);
    add(job, now_us, job.expected_us > 0 ? now_us + job.expected_us : 0);
  }
  return estimates;
}

bool HasPaceToStore(const LiveJob& live) {
  const int64_t step = live.attempt.progress.step, made = step - live.attempt.resume_step;
  if (live.attempt.paced_us == 0) return made > 0;
  return made >= kSettledSteps && step - live.attempt.paced_step >= kMeasuredSteps;
}

absl::Status StorePace(Database& db, const LiveJob& live, int64_t now_us) {
  const auto& [job, attempt, members] = live;
  if (attempt.paced_us == 0) {
    // A quick job's first report may already be past its fiftieth step: its pace is then not known.
    return store::SetPace(db, attempt.uid, attempt.progress.step, now_us);
  }
  const int64_t end = ExpectedEnd(attempt, job.schedule, now_us);
  if (end == 0 || attempt.state >= AttemptState::kStopping) return absl::OkStatus();
  return store::SetEstimateAt50(db, job.id, now_us, end);
}

}  // namespace sft::server
