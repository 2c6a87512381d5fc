#include "server/core/job_manager.h"

#include <fmt/format.h>

#include "server/core/convert.h"
#include "server/core/gang_life.h"
#include "server/state/names.h"
#include "server/store/attempts.h"
#include "server/store/files.h"

namespace sft::server {
namespace {

// The row with what other tables know of it.
absl::StatusOr<v1::Job> View(Database& db, const JobRecord& job) {
  v1::Job proto = ToProto(job);
  SFT_ASSIGN_OR_RETURN(const auto attempt, store::AttemptOfJob(db, job.id, job.attempt));
  if (attempt.has_value()) {
    // Written by this server; one that cannot be read shows no progress.
    if (!proto.mutable_progress()->ParseFromString(attempt->progress)) proto.clear_progress();
    SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members,
                         store::MembersOf(db, attempt->uid));
    for (const MemberRecord& member : members) proto.add_nodes(member.status.node);
  }
  SFT_ASSIGN_OR_RETURN(const std::vector<ArtifactRecord> artifacts,
                       store::ArtifactsOfJob(db, job.id));
  for (const ArtifactRecord& artifact : artifacts) proto.add_artifacts(ArtifactName(artifact.id));
  return proto;
}

absl::StatusOr<v1::Job> ViewOf(Database& db, const JobRef& name) {
  SFT_ASSIGN_OR_RETURN(const JobRecord job, store::FindJob(db, name));
  return View(db, job);
}

}  // namespace

absl::StatusOr<v1::Job> JobManager::Submit(JobRecord job, const std::vector<JobFileRecord>& files) {
  job.created_us = UnixMicros(clock_.Wall());
  absl::StatusOr<v1::Job> view = Internal("not run");
  const absl::Status stored = store_.Write([&](Database& db) -> absl::Status {
    if (!job.request_id.empty()) {
      SFT_ASSIGN_OR_RETURN(const auto first, store::FindByRequestId(db, job.request_id));
      if (first.has_value() && first->request_hash != job.request_hash) {
        return AlreadyExists(fmt::format(
            "request id {} was used for another job, {}: a new job needs a new request id",
            job.request_id, first->id));
      }
      if (first.has_value()) {
        view = View(db, *first);
        return view.status();
      }
    }
    SFT_RETURN_IF_ERROR(store::InsertJob(db, job, files));
    SFT_RETURN_IF_ERROR(
        store::AddEvent(db, job.id, {0, job.created_us, "submitted", "by " + job.owner, 0}));
    view = View(db, job);
    return view.status();
  });
  if (!stored.ok()) return stored;
  wake_();
  return view;
}

absl::StatusOr<v1::Job> JobManager::Get(const std::string& name) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
  absl::StatusOr<v1::Job> view = Internal("not run");
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) {
    view = ViewOf(db, ref);
    return view.status();
  }));
  return view;
}

absl::StatusOr<JobManager::Page> JobManager::List(store::JobFilter filter) {
  Page page;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const std::vector<JobRecord> jobs, store::ListJobs(db, filter));
    for (const JobRecord& job : jobs) {
      SFT_ASSIGN_OR_RETURN(v1::Job view, View(db, job));
      page.jobs.push_back(std::move(view));
    }
    if (static_cast<int>(jobs.size()) == std::clamp(filter.limit, 1, store::kMaxPage)) {
      page.next_sequence = jobs.back().sequence;
    }
    return absl::OkStatus();
  }));
  return page;
}

absl::StatusOr<v1::Job> JobManager::Cancel(const std::string& name, const std::string& reason) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
  absl::StatusOr<v1::Job> view = Internal("not run");
  ChangedJobs changed;
  const int64_t now_us = UnixMicros(clock_.Wall());
  SFT_RETURN_IF_ERROR(store_.Write([&](Database& db) -> absl::Status {
    changed.clear();
    SFT_RETURN_IF_ERROR(store::FindJob(db, ref).status());
    SFT_RETURN_IF_ERROR(CancelJob(db, ref.id, reason, now_us, changed));
    view = ViewOf(db, ref);
    return view.status();
  }));
  for (const std::string& job : changed) hub_.Bump(job);
  wake_();
  return view;
}

absl::StatusOr<std::vector<v1::JobEvent>> JobManager::Events(const std::string& name, int64_t after,
                                                             int limit) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
  std::vector<v1::JobEvent> events;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_RETURN_IF_ERROR(store::FindJob(db, ref).status());
    SFT_ASSIGN_OR_RETURN(const std::vector<EventRecord> records,
                         store::ListEvents(db, ref.id, after, limit));
    for (const EventRecord& record : records) events.push_back(ToProto(record));
    return absl::OkStatus();
  }));
  return events;
}

}  // namespace sft::server
