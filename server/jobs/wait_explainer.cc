#include "server/jobs/wait_explainer.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/duration.h"
#include "common/base/plain_text.h"
#include "common/hub/model_name.h"
#include "common/io/sha256.h"
#include "server/core/convert.h"
#include "server/resume/resume_values.h"
#include "server/scheduling/dependencies.h"
#include "server/scheduling/scheduler_input.h"
#include "server/scheduling/scheduler_jobs.h"
#include "server/scheduling/time_limits.h"
#include "server/state/estimates.h"
#include "server/state/names.h"
#include "server/store/schedules.h"

namespace sft::server {
namespace {

using sched::Change;
using sched::PendingJob;
using Overrides = google::protobuf::RepeatedPtrField<v1::Override>;

constexpr char kCpuType[] = "CPU";
constexpr int kNewestEstimates = 1000;
constexpr size_t kMaxKept = 256;
// A longer command is not pasted.
constexpr size_t kMaxCommand = 4000;
constexpr double kMicrosPerHour = 3600e6;

void Set(std::string key, std::string value, Overrides& overrides) {
  v1::Override& added = *overrides.Add();
  added.set_kind(v1::Override::SET);
  added.set_key(std::move(key));
  added.set_value(std::move(value));
  added.set_origin("--set");
}

std::string LimitText(int64_t limit_us) {
  return DurationText(std::chrono::seconds(limit_us / 1'000'000));
}

const PendingJob* FindPending(const sched::Snapshot& snapshot, const std::string& id) {
  const auto found = std::find_if(snapshot.pending.begin(), snapshot.pending.end(),
                                  [&](const PendingJob& each) { return each.id == id; });
  return found == snapshot.pending.end() ? nullptr : &*found;
}

// Those that are known, in a message that has them.
template <typename Timed>
void SetTimes(const sched::Outlook& expected, Timed& message) {
  if (expected.start_us > 0) *message.mutable_start_time() = ToTimestamp(expected.start_us);
  if (expected.end_us > 0) *message.mutable_end_time() = ToTimestamp(expected.end_us);
  if (expected.promised_us > 0) {
    *message.mutable_promised_start_time() = ToTimestamp(expected.promised_us);
  }
}

// Where it stands, and when it is expected to start.
void AddLine(const sched::Snapshot& snapshot, const sched::Decision& decision,
             const PendingJob& job, const sched::Outlook& expected,
             v1::WaitExplanation& explanation) {
  if (expected.place == 0) return;
  v1::Outlook& outlook = *explanation.mutable_outlook();
  outlook.set_place(expected.place);
  outlook.set_source("plan");
  SetTimes(expected, outlook);
  const sched::Ahead ahead = sched::AheadOf(snapshot, decision, job);
  explanation.set_line(ahead.line);
  explanation.set_ahead_own(ahead.own);
  explanation.set_ahead_others(ahead.others);
  explanation.set_ahead_gpu_hours(ahead.gpu_us / kMicrosPerHour);
  explanation.set_ahead_unknown(ahead.unknown);
}

void AddChange(const WaitChange& change, v1::WaitExplanation& explanation) {
  v1::WaitChange& added = *explanation.add_history();
  const WaitPlace& before = change.before;
  const WaitPlace& after = change.after;
  *added.mutable_time() = ToTimestamp(change.time_us);
  added.set_place_before(before.place);
  added.set_place(after.place);
  if (before.start_us > 0) *added.mutable_start_time_before() = ToTimestamp(before.start_us);
  if (after.start_us > 0) *added.mutable_start_time() = ToTimestamp(after.start_us);
  if (before.promised_us > 0) {
    *added.mutable_promised_start_time_before() = ToTimestamp(before.promised_us);
  }
  if (after.promised_us > 0) {
    *added.mutable_promised_start_time() = ToTimestamp(after.promised_us);
  }
  added.set_cause(change.cause);
}

}  // namespace

std::string ChangeText(const PendingJob& job, const Change& change) {
  switch (change.kind) {
    case Change::Kind::kRelease:
      return "released";
    case Change::Kind::kTimeLimit:
      return "with a time limit of " + LimitText(change.limit_us);
    case Change::Kind::kPriority:
      return "with priority " + PriorityName(change.priority);
    default:
      break;
  }
  const int gpus = change.nodes * change.gpus_per_node;
  const char* const slots = job.gpu_type == kCpuType ? "CPU slot" : "GPU";
  if (change.gpu_type != job.gpu_type) {
    return fmt::format("on {} x {}", gpus, change.gpu_type);
  }
  if (gpus == job.gpus()) {
    return fmt::format("on {} nodes with {} {}{} each", change.nodes, change.gpus_per_node, slots,
                       change.gpus_per_node == 1 ? "" : "s");
  }
  return fmt::format("with {} {}{} in place of {}", gpus, slots, gpus == 1 ? "" : "s", job.gpus());
}

Overrides OverridesOf(const PendingJob& job, const Change& change) {
  Overrides overrides;
  if (change.kind == Change::Kind::kTimeLimit) {
    Set("scheduling.time_limit", LimitText(change.limit_us), overrides);
  } else if (change.kind == Change::Kind::kPriority) {
    Set("scheduling.priority", PriorityName(change.priority), overrides);
  } else if (change.kind == Change::Kind::kShape) {
    if (change.gpu_type != job.gpu_type) Set("compute.gpu_type", change.gpu_type, overrides);
    const bool same = change.nodes == job.nodes && change.gpus_per_node == job.gpus_per_node;
    if (!same && change.nodes == 1 && job.nodes == 1) {
      Set("compute.gpu_count", std::to_string(change.gpus_per_node), overrides);
    } else if (!same) {
      Set("compute.nodes", std::to_string(change.nodes), overrides);
      Set("compute.gpus_per_node", std::to_string(change.gpus_per_node), overrides);
    }
  }
  return overrides;
}

std::string SubmitCommand(const v1::SubmitJobRequest& request) {
  std::string command = "sftctl submit " + ShellWord(request.file_name());
  for (int i = 0; i < request.overrides_size(); ++i) {
    const v1::Override& each = request.overrides(i);
    const bool wins =
        std::none_of(request.overrides().begin() + i + 1, request.overrides().end(),
                     [&](const v1::Override& later) { return later.key() == each.key(); });
    if (wins) command += " --set " + ShellWord(each.key() + "=" + each.value());
  }
  if (!request.project().empty() && request.project() != kDefaultProject) {
    command += " --project " + ShellWord(request.project());
  }
  return command;
}

class WaitExplainer::Turn {
 public:
  static absl::StatusOr<std::unique_ptr<Turn>> Take(WaitExplainer& explainer) {
    const MutexLock lock(explainer.mutex_);
    if (explainer.waiting_ >= kMaxWaiting) {
      return ResourceExhausted(fmt::format(
          "{} others ask already why a job waits: try again in a second", explainer.waiting_));
    }
    ++explainer.waiting_;
    while (explainer.busy_) explainer.free_.Wait(explainer.mutex_);
    --explainer.waiting_;
    explainer.busy_ = true;
    return std::unique_ptr<Turn>(new Turn(explainer));
  }
  ~Turn() {
    const MutexLock lock(explainer_.mutex_);
    explainer_.busy_ = false;
    explainer_.free_.NotifyOne();
  }
  Turn(const Turn&) = delete;

 private:
  explicit Turn(WaitExplainer& explainer) : explainer_(explainer) {}
  WaitExplainer& explainer_;
};

std::optional<v1::WaitExplanation> WaitExplainer::Kept(const std::string& key) {
  const MutexLock lock(mutex_);
  const MonoTime now = clock_.Mono();
  std::erase_if(answered_, [&](const auto& each) { return now - each.second.at >= kKept; });
  const auto found = answered_.find(key);
  if (found == answered_.end()) return std::nullopt;
  return found->second.explanation;
}

void WaitExplainer::Keep(const std::string& key, const v1::WaitExplanation& explanation) {
  const MutexLock lock(mutex_);
  if (answered_.size() >= kMaxKept) answered_.clear();
  answered_[key] = {clock_.Mono(), explanation};
}

absl::Status WaitExplainer::ReadFleet(Database& db, Known& known) const {
  SFT_ASSIGN_OR_RETURN(SchedulerInput input,
                       ReadSchedulerInput(db, registry_, registry_.now_us(), {}));
  known.snapshot = std::move(input.snapshot);
  SFT_ASSIGN_OR_RETURN(known.limits, store::GetLimits(db, known.job.project));
  SFT_ASSIGN_OR_RETURN(known.begun, store::LastBegun(db, kNewestEstimates));
  return absl::OkStatus();
}

absl::StatusOr<v1::WaitExplanation> WaitExplainer::Explain(const std::string& name) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
  const auto read = [&](Known& known, bool all) {
    return store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(known.job, store::FindJob(db, ref));
      if (known.job.state != JobState::kPending) {
        return FailedPrecondition(
            fmt::format("job {} does not wait: it is {}", known.job.id, ToString(known.job.state)));
      }
      if (!all) return absl::OkStatus();
      SFT_RETURN_IF_ERROR(store::ReadTexts(db, known.job));
      SFT_ASSIGN_OR_RETURN(known.job.schedule, store::GetSchedule(db, known.job.id));
      SFT_ASSIGN_OR_RETURN(const Dependencies others, ReadDependencies(db, known.job.schedule));
      known.job.schedule.after = others.left;
      SFT_ASSIGN_OR_RETURN(known.files, store::FilesOfJob(db, known.job.id));
      SFT_ASSIGN_OR_RETURN(known.history, store::WaitChangesOf(db, known.job.id));
      return ReadFleet(db, known);
    });
  };
  Known known;
  known.stored = true;
  SFT_RETURN_IF_ERROR(read(known, /*all=*/false));
  if (auto kept = Kept(known.job.id)) return *std::move(kept);
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<Turn> turn, Turn::Take(*this));
  // Another caller may have asked about the same meanwhile.
  if (auto kept = Kept(known.job.id)) return *std::move(kept);
  SFT_RETURN_IF_ERROR(read(known, /*all=*/true));
  SFT_ASSIGN_OR_RETURN(v1::WaitExplanation explanation, Answer(known));
  for (const WaitChange& change : known.history) AddChange(change, explanation);
  Keep(known.job.id, explanation);
  return explanation;
}

absl::StatusOr<v1::WaitExplanation> WaitExplainer::ExplainNew(const v1::SubmitJobRequest& request,
                                                              const std::string& principal) {
  const std::string key = io::Sha256Hex(principal + "\n" + request.SerializeAsString());
  if (auto kept = Kept(key)) return *std::move(kept);
  // Before its turn: a model hub may be slow to answer, and others need nothing of it.
  SFT_ASSIGN_OR_RETURN(JobIntake::Prepared prepared, intake_.Prepare(request, principal));
  v1::WaitExplanation explanation;
  if (!prepared.outcome.problems.empty()) return explanation;
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<Turn> turn, Turn::Take(*this));
  // Another call may have asked the same meanwhile.
  if (auto kept = Kept(key)) return *std::move(kept);
  Known known;
  known.job = std::move(prepared.job);
  known.files = std::move(prepared.files);
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) { return ReadFleet(db, known); }));
  known.job.created_us = known.snapshot.now_us;
  known.snapshot.pending.push_back(ToPending(known.job));
  SFT_ASSIGN_OR_RETURN(explanation, Answer(known));
  Keep(key, explanation);
  return explanation;
}

absl::StatusOr<v1::WaitExplanation> WaitExplainer::Answer(const Known& known) {
  v1::WaitExplanation explanation;
  explanation.set_reason(known.job.reason);
  const PendingJob* const job = FindPending(known.snapshot, known.job.id);
  if (job == nullptr) {
    // It waits for a time, and its reason says so; or stands too far behind to have one.
    if (explanation.reason().empty()) {
      explanation.set_reason(fmt::format("waiting behind more than {} jobs of its project",
                                         SchedulerInput::kMaxPending));
    }
    return explanation;
  }
  const sched::Decision decision = sched::Decide(known.snapshot);
  const sched::Outlook expected = sched::OutlookOf(known.snapshot, decision, *job);
  if (expected.now) {
    explanation.clear_reason();
    return explanation;
  }
  if (explanation.reason().empty()) explanation.set_reason(expected.text);
  AddLine(known.snapshot, decision, *job, expected, explanation);
  const EstimateErrors past = ReportOf(known.begun, {}).start;
  explanation.set_past_starts(past.all);
  explanation.set_past_within_20(past.within_20);
  explanation.set_past_within_50(past.within_50);
  sched::Question question;
  question.job = *job;
  question.expected = expected;
  if (known.job.schedule.held && known.stored) {
    JobRecord released = known.job;
    released.schedule.held = false;
    PendingJob then = *job;
    then.blocked = WhyBlocked(released);
    if (then.blocked.empty()) question.released = std::move(then);
  }
  // Jobs of other kinds are often made by commands, which have no job file.
  const bool has_file =
      !known.job.file_name.empty() && (!known.stored || known.job.kind == v1::Job::SFT);
  question.replaceable =
      has_file && known.job.attempt == 0 && (!known.stored || known.job.resumed_from.empty());
  question.max_priority = known.limits.max_priority;
  question.ending_us = kEndingUs;
  question.reshape = [&](const Change& change) { return Reshape(known, change); };
  AddWhatIfs(known, question, explanation);
  return explanation;
}

std::optional<PendingJob> WaitExplainer::Reshape(const Known& known, const Change& change) const {
  const PendingJob job = ToPending(known.job);
  Overrides overrides = OverridesOf(job, change);
  // The commit that it has, so that no hub is asked.
  const auto model = hub::ParseModelName(known.job.model);
  if (model.has_value() && hub::IsCommit(model->revision)) {
    Set("job.model", known.job.model, overrides);
  }
  const absl::StatusOr<JobIntake::Prepared> prepared = intake_.Prepare(
      SubmitAgain(known.job, known.files, overrides), known.job.owner, {.ask_hub = false});
  // It need not fit into other GPUs, nor its batch be divided by another number of them.
  if (!prepared.ok() || !prepared->outcome.problems.empty()) return std::nullopt;
  PendingJob changed = ToPending(prepared->job);
  const bool as_asked = changed.gpu_type == change.gpu_type && changed.nodes == change.nodes &&
                        changed.gpus_per_node == change.gpus_per_node;
  if (!as_asked) return std::nullopt;
  return changed;
}

void WaitExplainer::AddWhatIfs(const Known& known, const sched::Question& question,
                               v1::WaitExplanation& explanation) const {
  for (const sched::WhatIf& each : sched::FindWhatIfs(known.snapshot, question)) {
    std::string command = "sftctl release " + known.job.id;
    if (each.change.kind != Change::Kind::kRelease) {
      command = SubmitCommand(
          SubmitAgain(known.job, known.files, OverridesOf(question.job, each.change)));
      if (known.stored) command += " && sftctl cancel " + known.job.id;
    }
    if (command.size() > kMaxCommand) continue;
    v1::WhatIf& added = *explanation.add_what_ifs();
    added.set_change(ChangeText(question.job, each.change));
    added.set_now(each.outlook.now);
    added.set_command(command);
    SetTimes(each.outlook, added);
  }
}

}  // namespace sft::server
