// Jobs as they are shown, one by one and in lists.

#include <algorithm>
#include <utility>

#include "server/core/convert.h"
#include "server/core/costs.h"
#include "server/jobs/job_manager.h"
#include "server/state/names.h"
#include "server/store/attempts.h"
#include "server/store/files.h"
#include "server/store/prices.h"
#include "server/store/progress.h"
#include "server/store/schedules.h"

namespace sft::server {
namespace {

using v1::Job;

// Whether any field is asked for that comes from the row of the job's schedule.
bool AsksForSchedule(const JobFields& fields) {
  return fields.HasAny({Job::kSweepFieldNumber, Job::kGroupFieldNumber, Job::kExclusiveFieldNumber,
                        Job::kDeadlineFieldNumber, Job::kHeldFieldNumber, Job::kAfterFieldNumber});
}

store::JobColumns ColumnsOf(const JobFields& fields) {
  return {.reason = fields.Has(Job::kReasonFieldNumber),
          .verdict = fields.Has(Job::kVerdictFieldNumber),
          .warnings = fields.Has(Job::kWarningsFieldNumber),
          .metadata = fields.Has(Job::kMetadataFieldNumber)};
}

// How far its attempt has come, and on which nodes.
absl::Status AddAttempt(Database& db, const JobRecord& job, const JobFields& fields, Job& proto) {
  if (!fields.HasAny({Job::kProgressFieldNumber, Job::kNodesFieldNumber})) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const auto attempt, store::AttemptOfJob(db, job.id, job.attempt));
  if (!attempt.has_value()) return absl::OkStatus();
  *proto.mutable_progress() = ToProto(attempt->progress);
  if (!fields.Has(Job::kNodesFieldNumber)) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members, store::MembersOf(db, attempt->uid));
  for (const MemberRecord& member : members) proto.add_nodes(member.status.node);
  return absl::OkStatus();
}

}  // namespace

v1::Job JobManager::ViewOfNew(const JobRecord& job, const ScheduleRecord& schedule,
                              std::string spec_text) const {
  v1::Job proto = ToProto(job, std::move(spec_text));
  proto.set_priority(PriorityName(job.priority));
  proto.set_sweep(schedule.sweep);
  proto.set_group(schedule.group);
  proto.set_exclusive(schedule.exclusive);
  if (schedule.deadline_us > 0) *proto.mutable_deadline() = ToTimestamp(schedule.deadline_us);
  if (IsTerminal(job.state)) return proto;
  proto.set_held(schedule.held);
  for (const std::string& id : schedule.after) proto.add_after(id);
  const auto outlook = outlooks_ == nullptr ? std::nullopt : outlooks_->Of(job.id);
  if (outlook.has_value()) *proto.mutable_outlook() = *outlook;
  return proto;
}

absl::StatusOr<v1::Job> JobManager::View(Database& db, const JobRecord& job,
                                         const PriceList& prices, std::string spec_text,
                                         bool with_lost, const JobFields& fields) const {
  ScheduleRecord schedule;
  if (AsksForSchedule(fields)) {
    SFT_ASSIGN_OR_RETURN(schedule, store::GetSchedule(db, job.id));
  }
  v1::Job proto = ViewOfNew(job, schedule, std::move(spec_text));
  SFT_RETURN_IF_ERROR(AddAttempt(db, job, fields, proto));
  if (fields.Has(Job::kArtifactsFieldNumber)) {
    SFT_ASSIGN_OR_RETURN(const std::vector<ArtifactRecord> artifacts,
                         store::ArtifactsOfJob(db, job.id));
    for (const ArtifactRecord& artifact : artifacts) proto.add_artifacts(ArtifactName(artifact.id));
  }
  if (fields.Has(Job::kCostFieldNumber)) {
    SFT_ASSIGN_OR_RETURN(std::optional<v1::Cost> cost,
                         CostOfJob(db, prices, job, UnixMicros(clock_.Wall()), with_lost));
    if (cost.has_value()) *proto.mutable_cost() = *std::move(cost);
  }
  return proto;
}

absl::StatusOr<store::JobPlace> JobManager::PlaceOf(const std::string& name,
                                                    const store::JobFilter& filter) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
  store::JobPlace place;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const JobRecord job, store::FindJob(db, ref));
    const auto& visible = filter.visible;
    if (visible.has_value() && std::ranges::find(*visible, job.project) == visible->end()) {
      return store::NoJob(ref.id);
    }
    place = store::PlaceOf(job, filter.order);
    return absl::OkStatus();
  }));
  return place;
}

absl::StatusOr<JobManager::Page> JobManager::List(const store::JobFilter& filter,
                                                  const JobFields& fields, bool count) {
  Page page;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    if (count) {
      SFT_ASSIGN_OR_RETURN(page.total, store::CountJobs(db, filter, kMaxCounted));
    }
    PriceList prices;
    if (fields.Has(Job::kCostFieldNumber)) {
      SFT_ASSIGN_OR_RETURN(prices, store::ReadPrices(db));
    }
    SFT_ASSIGN_OR_RETURN(const std::vector<JobRecord> jobs,
                         store::ListJobs(db, filter, ColumnsOf(fields)));
    for (const JobRecord& job : jobs) {
      SFT_ASSIGN_OR_RETURN(v1::Job view, View(db, job, prices, "", /*with_lost=*/false, fields));
      fields.Keep(view);
      if (view.has_progress()) view.mutable_progress()->clear_ranks();
      page.jobs.push_back(std::move(view));
    }
    if (static_cast<int>(jobs.size()) == std::clamp(filter.limit, 1, store::kMaxPage)) {
      page.next = store::PlaceOf(jobs.back(), filter.order);
    }
    return absl::OkStatus();
  }));
  return page;
}

}  // namespace sft::server
