#include "server/jobs/job_manager.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "common/base/duration.h"
#include "common/base/ids.h"
#include "common/io/sha256.h"
#include "server/core/convert.h"
#include "server/core/costs.h"
#include "server/core/project_limits.h"
#include "server/gangs/gang_life.h"
#include "server/jobs/adapter_check.h"
#include "server/jobs/new_job.h"
#include "server/resume/resume.h"
#include "server/state/names.h"
#include "server/store/attempts.h"
#include "server/store/audit.h"
#include "server/store/checkpoints.h"
#include "server/store/files.h"
#include "server/store/prices.h"
#include "server/store/progress.h"
#include "server/store/schedules.h"
#include "server/store/storage.h"

namespace sft::server {
namespace {

constexpr int kAttemptsShown = 50;
constexpr int64_t kMaxTimeLimitSeconds = int64_t{3650} * 24 * 3600;

absl::Status AddAttempts(Database& db, const JobRecord& job, v1::Job& proto) {
  SFT_ASSIGN_OR_RETURN(const std::vector<AttemptRecord> attempts,
                       store::AttemptsOfJob(db, job.id, kAttemptsShown));
  for (auto attempt = attempts.rbegin(); attempt != attempts.rend(); ++attempt) {
    v1::Attempt& added = *proto.add_attempts();
    added = ToProto(*attempt);
    if (job.kind != v1::Job::SFT) {  // counts its answers, whatever checkpoint answers
      added.set_first_step(0);
      added.set_last_step(attempt->progress.step);
    }
    SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members,
                         store::MembersOf(db, attempt->uid));
    for (const MemberRecord& member : members) added.add_nodes(member.status.node);
  }
  if (!job.resumed_from.empty()) {
    SFT_ASSIGN_OR_RETURN(const JobRecord origin, store::GetJob(db, job.resumed_from));
    proto.set_resumed_from(JobName(origin.project, origin.id));
    SFT_ASSIGN_OR_RETURN(const auto first, store::AttemptOfJob(db, job.id, 1));
    proto.set_resumed_step(first.has_value() ? first->resume_step : job.resumed_step);
  }
  SFT_ASSIGN_OR_RETURN(const int64_t newest, store::NewestStep(db, job.id));
  proto.set_checkpoint_step(newest);
  return absl::OkStatus();
}

// Another time limit than the job file's, also in what is shown of the job.
void SetTimeLimit(JobRecord& job, int64_t seconds) {
  ScheduleRecord& schedule = job.schedule;
  schedule.time_limit_us = seconds * 1'000'000;
  if (seconds > 0) {
    schedule.warn_before_us = std::min(schedule.warn_before_us, schedule.time_limit_us / 2);
  }
  const std::string text = DurationText(std::chrono::seconds(seconds));
  for (ResolvedRecord& value : job.resolved_values) {
    if (value.key == "scheduling.time_limit") value.value = text, value.origin = "resume";
  }
  job.spec->scheduling.time_limit = text;
}

// The values of a job that was resolved anew; what the ended one is of stays.
void SetValues(JobRecord& job, const JobRecord& resolved) {
  job.display_name = resolved.display_name;
  job.variant = resolved.variant;
  job.gpu_type = resolved.gpu_type;
  job.gpus_per_node = resolved.gpus_per_node;
  job.nodes = resolved.nodes;
  job.model = resolved.model;
  job.spec = resolved.spec;
  job.resolved_values = resolved.resolved_values;
  job.warnings = resolved.warnings;
  job.protocol = resolved.protocol;
  job.newer_keys = resolved.newer_keys;
  job.priority = resolved.priority;
  const std::string sweep = job.schedule.sweep;
  const int sweep_limit = job.schedule.sweep_limit;
  job.schedule = resolved.schedule;
  job.schedule.sweep = sweep;
  job.schedule.sweep_limit = sweep_limit;
}

// "step 20, with other compute.gpu_count"
std::string FromText(const v1::ResumeJobRequest& request) {
  std::string text = request.step() > 0 ? fmt::format("step {}", request.step())
                                        : "its newest checkpoint that can be reached";
  std::set<std::string> keys;
  for (const v1::Override& override : request.overrides()) keys.insert(override.key());
  if (!keys.empty()) text += fmt::format(", with other {}", fmt::join(keys, ", "));
  return text;
}

std::string HashOf(const std::string& ended, const v1::ResumeJobRequest& request) {
  std::string said = fmt::format("resume {} {} {}", ended, request.step(), request.allow_changes());
  if (request.has_time_limit_seconds()) said += fmt::format(" {}", request.time_limit_seconds());
  for (const v1::Override& override : request.overrides()) said += override.SerializeAsString();
  return io::Sha256Hex(said);
}

absl::Status UseDatasets(Database& db, const JobRecord& job,
                         const std::vector<JobFileRecord>& files) {
  for (const JobFileRecord& file : files) {
    if (file.sha256.empty()) continue;
    if (file.key.starts_with(store::kAdapterFilePrefix)) {
      SFT_ASSIGN_OR_RETURN(const bool there, store::IsArtifactsBlob(db, file.sha256));
      if (!there) return Aborted("its adapter (job.adapter) was removed");
      continue;
    }
    SFT_RETURN_IF_ERROR(store::UseDataset(db, file.sha256, job.created_us));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::Job> JobManager::ViewOf(Database& db, const JobRef& name,
                                           std::optional<Texts>* texts) const {
  SFT_ASSIGN_OR_RETURN(JobRecord job, store::FindJob(db, name));
  std::optional<Texts> read;
  if (texts == nullptr) texts = &read;
  if (!texts->has_value()) {
    SFT_RETURN_IF_ERROR(store::ReadTexts(db, job));
    SFT_ASSIGN_OR_RETURN(std::string spec, store::ReadSpecText(db, job));
    *texts = Texts{std::move(job.source_text), std::move(spec), std::move(job.resolved_values)};
  }
  job.source_text = (*texts)->source;
  job.resolved_values = (*texts)->values;
  SFT_ASSIGN_OR_RETURN(const PriceList prices, store::ReadPrices(db));
  SFT_ASSIGN_OR_RETURN(v1::Job proto, View(db, job, prices, (*texts)->spec, /*with_lost=*/true));
  SFT_RETURN_IF_ERROR(AddAttempts(db, job, proto));
  SFT_RETURN_IF_ERROR(AddHooks(db, job.id, proto));
  return proto;
}

absl::StatusOr<std::optional<JobRecord>> JobManager::FindFirst(Database& db,
                                                               const JobRecord& job) const {
  if (job.request_id.empty()) return std::optional<JobRecord>();
  SFT_ASSIGN_OR_RETURN(auto first, store::FindByRequestId(db, job.project, job.request_id));
  if (first.has_value() && first->request_hash != job.request_hash) {
    return AlreadyExists(
        fmt::format("request id {} was used for another job, {}: a new job needs a new request id",
                    job.request_id, first->id));
  }
  return first;
}

absl::Status CheckRequestId(const std::string& id) {
  if (id.size() > 128) return InvalidArgument("a request id has at most 128 bytes");
  const bool plain =
      std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::iscntrl(c) == 0; });
  return plain ? absl::OkStatus() : InvalidArgument("a request id has no control characters");
}

absl::Status CheckResumeRequest(const v1::ResumeJobRequest& request) {
  if (request.step() < 0) return InvalidArgument("a step is a whole number from 1");
  if (request.time_limit_seconds() < 0 || request.time_limit_seconds() > kMaxTimeLimitSeconds) {
    return InvalidArgument("a time limit is a duration up to 3650 days, 0s for none");
  }
  return CheckRequestId(request.request_id());
}

absl::StatusOr<v1::Job> JobManager::Submit(JobRecord job, const std::vector<JobFileRecord>& files,
                                           const Actor& actor) {
  std::vector<JobRecord> jobs;
  jobs.push_back(std::move(job));
  SFT_ASSIGN_OR_RETURN(std::vector<v1::Job> views,
                       SubmitAll(std::move(jobs), files, nullptr, actor));
  return std::move(views.front());
}

absl::StatusOr<std::vector<v1::Job>> JobManager::SubmitSweep(
    std::vector<JobRecord> jobs, const std::vector<JobFileRecord>& files,
    const std::string& source_text, const Actor& actor) {
  return SubmitAll(std::move(jobs), files, &source_text, actor);
}

absl::Status JobManager::InsertAll(std::vector<JobRecord>& jobs,
                                   const std::vector<store::JobTexts>& texts,
                                   const std::vector<JobFileRecord>& files,
                                   const std::string* shared_text, const Actor& actor,
                                   std::vector<v1::Job>& views) {
  for (size_t begin = 0; begin < jobs.size(); begin += kMaxTogether) {
    const size_t end = std::min(begin + kMaxTogether, jobs.size());
    SFT_RETURN_IF_ERROR(store_.Write(
        [&](Database& db) -> absl::Status {
          bool counted = false;
          for (size_t i = begin; i < end; ++i) {
            JobRecord& job = jobs[i];
            SFT_ASSIGN_OR_RETURN(std::optional<JobRecord> first, FindFirst(db, job));
            if (first.has_value()) {
              std::string spec_text;
              if (shared_text == nullptr) {
                SFT_RETURN_IF_ERROR(store::ReadTexts(db, *first));
                SFT_ASSIGN_OR_RETURN(spec_text, store::ReadSpecText(db, *first));
              }
              SFT_ASSIGN_OR_RETURN(const PriceList prices, store::ReadPrices(db));
              SFT_ASSIGN_OR_RETURN(views[i], View(db, *first, prices, std::move(spec_text)));
            } else {
              // All that are to come at once: none of a sweep is stored where not all may wait.
              const size_t more = std::exchange(counted, true) ? 0 : jobs.size() - i;
              SFT_RETURN_IF_ERROR(CheckLimits(db, job, static_cast<int>(more)));
              job.created_us = UnixMicros(clock_.Wall());
              SFT_RETURN_IF_ERROR(UseDatasets(db, job, files));
              if (shared_text != nullptr) job.source_text = *shared_text;
              SFT_RETURN_IF_ERROR(store::InsertJob(db, job, texts[i], files));
              if (shared_text != nullptr) job.source_text = std::string();
              SFT_RETURN_IF_ERROR(store::AddEvent(
                  db, job.id, {0, job.created_us, "submitted", "by " + job.owner, 0}));
            }
            if (actor.audit == nullptr) continue;
            const JobRecord& told = first.has_value() ? *first : job;
            actor.audit->record.object =
                job.schedule.sweep.empty() ? JobName(told.project, told.id) : job.schedule.sweep;
          }
          return absl::OkStatus();
        },
        actor.audit));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::Job>> JobManager::SubmitAll(std::vector<JobRecord> jobs,
                                                           const std::vector<JobFileRecord>& files,
                                                           const std::string* shared_text,
                                                           const Actor& actor) {
  std::vector<v1::Job> views(jobs.size());
  std::vector<store::JobTexts> texts;
  HookOffers offers(store_, hooks_);
  for (JobRecord& job : jobs) {
    texts.push_back(store::TextsOf(job));
    SFT_RETURN_IF_ERROR(offers.MakeFor(job));
  }
  SFT_RETURN_IF_ERROR(InsertAll(jobs, texts, files, shared_text, actor, views));
  // Outside of the transactions, which others wait for.
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (views[i].name().empty()) {
      views[i] = ViewOfNew(jobs[i], jobs[i].schedule,
                           shared_text == nullptr ? std::move(texts[i].spec) : "");
    }
    const spec::JobSpec::Notify& notify = jobs[i].spec->notify;
    if (!notify.mail.empty() || !notify.webhook.empty()) {
      SFT_RETURN_IF_ERROR(offers.AddTo(views[i]));
    }
  }
  for (const JobRecord& job : jobs) hub_.Bump(job.id);
  wake_();
  return views;
}

absl::StatusOr<std::optional<v1::Job>> JobManager::FindMade(const v1::SubmitJobRequest& request,
                                                            const Actor& actor) {
  JobRecord asked;
  asked.owner = actor.name;
  asked.project = ProjectOf(request.project());
  asked.request_hash = RequestHash(request);
  const int64_t since_us = UnixMicros(clock_.Wall() - Nanos(kSameRequest));
  std::optional<v1::Job> made;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const auto job, store::FindSameRequest(db, asked, since_us));
    if (!job.has_value()) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(made, ViewOf(db, {job->project, job->id}));
    return absl::OkStatus();
  }));
  return made;
}

bool JobManager::Knows(const std::string& project, const std::string& request_id) {
  if (request_id.empty()) return false;
  bool known = false;
  const absl::Status read = store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const auto first, store::FindByRequestId(db, project, request_id));
    known = first.has_value();
    return absl::OkStatus();
  });
  return read.ok() && known;
}

absl::StatusOr<v1::Job> JobManager::Get(const std::string& name, std::optional<Texts>* texts) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
  absl::StatusOr<v1::Job> view = Internal("not run");
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) {
    view = ViewOf(db, ref, texts);
    return view.status();
  }));
  return view;
}

absl::StatusOr<JobState> JobManager::StateOf(const std::string& name) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
  JobState state = JobState::kPending;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const JobRecord job, store::FindJob(db, ref));
    state = job.state;
    return absl::OkStatus();
  }));
  return state;
}

absl::StatusOr<JobRecord> JobManager::InsertResumed(Database& db,
                                                    const v1::ResumeJobRequest& request,
                                                    const JobRef& ref, const std::string& owner,
                                                    const JobRecord* resolved,
                                                    const std::string& offered_hook) {
  SFT_ASSIGN_OR_RETURN(JobRecord ended, store::FindJob(db, ref));
  SFT_RETURN_IF_ERROR(store::ReadTexts(db, ended));
  SFT_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> checkpoints,
                       ResumeCandidates(db, ended));
  SFT_RETURN_IF_ERROR(CheckResumable(ended, checkpoints, request.step()));
  JobRecord job = ended;
  job.id = RandomId("job");
  job.owner = owner;
  job.state = JobState::kPending;
  job.reason.clear();
  job.request_id = request.request_id();
  job.request_hash = HashOf(ended.id, request);
  job.cancel_requested = job.cancel_checkpoint = false;
  job.cancel_reason.clear();
  job.attempt = 0;
  job.verdict = {};
  job.restart = {};
  job.not_before_us = job.started_us = job.ended_us = 0;
  job.avoid_node.clear();
  // Of a job that was resumed itself and wrote none that can be used, the one it came from.
  const auto chosen =
      std::find_if(checkpoints.begin(), checkpoints.end(), [&](const CheckpointRecord& each) {
        return each.problem.empty() && (request.step() == 0 || each.step == request.step());
      });
  job.resumed_from = (chosen == checkpoints.end() ? checkpoints.begin() : chosen)->job_id;
  // What it was told to go on from holds for the one that takes its place.
  const bool same_origin = job.resumed_from == ended.resumed_from;
  job.resumed_step = request.step() == 0 && same_origin ? ended.resumed_step : request.step();
  job.resume_changed = request.allow_changes();
  job.created_us = UnixMicros(clock_.Wall());
  SFT_ASSIGN_OR_RETURN(const std::optional<JobRecord> first, FindFirst(db, job));
  if (first.has_value()) return *first;
  SFT_ASSIGN_OR_RETURN(std::vector<JobFileRecord> files, store::FilesOfJob(db, ended.id));
  SFT_ASSIGN_OR_RETURN(job.schedule, store::GetSchedule(db, ended.id));
  if (resolved != nullptr) {
    SetValues(job, *resolved);
  } else {
    absl::StatusOr<spec::JobSpec> spec = store::ReadSpec(db, ended);
    if (absl::IsDataLoss(spec.status())) {
      return FailedPrecondition(
          fmt::format("job {} cannot go on: its stored settings cannot be read ({}); submit the "
                      "job again",
                      ended.id, Message(spec.status())));
    }
    SFT_RETURN_IF_ERROR(spec.status());
    job.spec = *std::move(spec);
    job.schedule.after.clear();  // they had ended before it began
    job.schedule.held = false;
    if (request.has_time_limit_seconds()) SetTimeLimit(job, request.time_limit_seconds());
  }
  if (job.spec && !ReadsAdapterOnResume(*job.spec)) {
    std::erase_if(files, [](const JobFileRecord& file) {
      return file.key == "job.adapter" || file.key.starts_with(store::kAdapterFilePrefix);
    });
  }
  SFT_RETURN_IF_ERROR(CheckLimits(db, job, 1));
  const absl::Status used = UseDatasets(db, job, files);
  if (absl::IsAborted(used)) {
    return FailedPrecondition(
        fmt::format("job {} cannot go on: {}; submit the job again", ended.id, Message(used)));
  }
  SFT_RETURN_IF_ERROR(used);
  job.offered_hook = offered_hook;
  SFT_RETURN_IF_ERROR(store::InsertJob(db, job, files));
  SFT_RETURN_IF_ERROR(store::AddEvent(
      db, job.id,
      {0, job.created_us, "submitted",
       fmt::format("by {}, to go on with {} from {}", job.owner, ended.id, FromText(request)), 0}));
  SFT_RETURN_IF_ERROR(store::AddEvent(
      db, ended.id, {0, job.created_us, "resumed", "continued by " + job.id, ended.attempt}));
  return job;
}

absl::StatusOr<std::string> JobManager::OfferHook(const JobRef& ref, const std::string& owner,
                                                  const JobRecord* resolved, HookOffers& offers) {
  JobRecord made;
  made.owner = owner;
  if (resolved != nullptr) made.spec = resolved->spec;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const JobRecord ended, store::FindJob(db, ref));
    made.project = ended.project;
    if (made.spec.has_value()) return absl::OkStatus();
    absl::StatusOr<spec::JobSpec> spec = store::ReadSpec(db, ended);
    if (spec.ok()) made.spec = *std::move(spec);  // else InsertResumed says so
    return absl::OkStatus();
  }));
  SFT_RETURN_IF_ERROR(offers.MakeFor(made));
  return made.offered_hook;
}

absl::StatusOr<v1::Job> JobManager::Resume(const v1::ResumeJobRequest& request, const Actor& actor,
                                           const JobRecord* resolved) {
  SFT_RETURN_IF_ERROR(CheckResumeRequest(request));
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(request.name()));
  HookOffers offers(store_, hooks_);
  SFT_ASSIGN_OR_RETURN(const std::string offered, OfferHook(ref, actor.name, resolved, offers));
  absl::StatusOr<v1::Job> view = Internal("not run");
  const absl::Status stored = store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_ASSIGN_OR_RETURN(const JobRecord job,
                             InsertResumed(db, request, ref, actor.name, resolved, offered));
        view = ViewOf(db, {job.project, job.id});
        return view.status();
      },
      actor.audit);
  if (!stored.ok()) return stored;
  SFT_RETURN_IF_ERROR(offers.AddTo(*view));
  hub_.Bump(ref.id);
  SFT_ASSIGN_OR_RETURN(const JobRef made, ParseJobName(view->name()));
  hub_.Bump(made.id);
  wake_();
  return view;
}

absl::StatusOr<v1::Job> JobManager::Cancel(const std::string& name, const std::string& reason,
                                           bool checkpoint, const Actor& actor) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
  absl::StatusOr<v1::Job> view = Internal("not run");
  ChangedJobs changed;
  const int64_t now_us = UnixMicros(clock_.Wall());
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        changed.clear();
        SFT_RETURN_IF_ERROR(store::FindJob(db, ref).status());
        SFT_RETURN_IF_ERROR(CancelJob(db, ref.id, reason, checkpoint, now_us, changed));
        view = ViewOf(db, ref);
        return view.status();
      },
      actor.audit));
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
