#include "server/jobs/job_intake.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/utf8.h"
#include "common/data/dataset_check.h"
#include "common/spec/layout.h"
#include "common/spec/mixture.h"
#include "common/spec/visit.h"
#include "server/core/convert.h"
#include "server/core/project_limits.h"
#include "server/jobs/adapter_check.h"
#include "server/jobs/checkpoint_pin.h"
#include "server/jobs/dataset_verdict.h"
#include "server/jobs/job_checks.h"
#include "server/jobs/model_pin.h"
#include "server/jobs/new_job.h"
#include "server/jobs/template_pin.h"
#include "server/resume/resume.h"
#include "server/resume/resume_values.h"
#include "server/state/names.h"
#include "server/store/files.h"
#include "server/store/nodes.h"
#include "server/store/schedules.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

// The most bytes of a path that a client may name.
constexpr size_t kMaxNameBytes = 4096;

spec::OverrideKind KindOf(v1::Override::Kind kind) {
  switch (kind) {
    case v1::Override::ENVIRONMENT:
      return spec::OverrideKind::kEnvironment;
    case v1::Override::FLAG:
      return spec::OverrideKind::kFlag;
    default:
      return spec::OverrideKind::kSet;
  }
}

void ToProto(const spec::Problem& problem, v1::Problem& proto) {
  proto.set_key(problem.key);
  proto.set_line(problem.line);
  proto.set_message(problem.message);
}

absl::Status CheckProject(const std::string& named) {
  if (named.empty() || IsValidLabel(named)) return absl::OkStatus();
  return InvalidArgument(fmt::format("project \"{}\" is not a name", named));
}

absl::Status CheckMetadata(const google::protobuf::Map<std::string, std::string>& metadata) {
  constexpr size_t kMost = 16, kMostOfKey = 64, kMostOfValue = 512;
  const auto fits = [](const std::string& text, size_t most) {
    const auto characters = std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
    return static_cast<size_t>(characters) <= most && FindHidden(text).empty();
  };
  bool sound = metadata.size() <= kMost;
  for (const auto& [key, value] : metadata) {
    sound = sound && !key.empty() && fits(key, kMostOfKey) && fits(value, kMostOfValue);
  }
  if (sound) return absl::OkStatus();
  return InvalidArgument(
      fmt::format("metadata: at most {} texts of {} characters, with keys of {}, on one line each "
                  "and without control characters",
                  kMost, kMostOfValue, kMostOfKey));
}

constexpr std::string_view kMixture = "data.mixture";

// The files with rows that lie on nodes, by key.
std::vector<std::pair<std::string, std::string>> NodeFiles(const spec::JobSpec& spec) {
  std::vector<std::pair<std::string, std::string>> files;
  const auto add = [&](std::string key, const std::string& value) {
    const std::string_view path = spec::NodePath(value);
    if (!path.empty()) files.emplace_back(std::move(key), path);
  };
  const absl::StatusOr<std::vector<spec::TrainPart>> parts = spec::TrainParts(spec);
  for (size_t i = 0; parts.ok() && i < parts->size(); ++i) add(spec::PartKey(i), (*parts)[i].path);
  add("data.val", spec.data.val);
  return files;
}

// The samples that an epoch has of the file.
int64_t SamplesOfEpoch(const spec::TrainPart& part, int64_t rows, double samples_of_row) {
  if (part.max_examples > 0) rows = std::min(rows, part.max_examples);
  const double samples = static_cast<double>(rows) * samples_of_row;
  return std::max<int64_t>(1, std::llround(samples * part.weight));
}

// What is said beside the job file is repeated for each key that it gives, and compared with all
// keys.
absl::Status CheckSizes(const std::string& text, const std::string& file_name,
                        const google::protobuf::RepeatedPtrField<v1::Override>& overrides) {
  constexpr int kMostOverrides = 1000;
  if (file_name.size() > kMaxNameBytes) {
    return InvalidArgument(
        fmt::format("the name of the job file has {} bytes; at most {} are taken", file_name.size(),
                    kMaxNameBytes));
  }
  if (text.size() > JobIntake::kMaxSourceBytes) {
    return InvalidArgument(fmt::format("{} is larger than 1 MiB: it is no job file", file_name));
  }
  if (overrides.size() > kMostOverrides) {
    return InvalidArgument(
        fmt::format("{} changes of keys (--set, flags, variables); at most {} are taken",
                    overrides.size(), kMostOverrides));
  }
  size_t bytes = 0;
  for (const v1::Override& change : overrides) {
    bytes += change.ByteSizeLong();
    if (change.key().size() <= kMaxNameBytes && change.origin().size() <= kMaxNameBytes &&
        FindHidden(change.key()).empty() && FindHidden(change.origin()).empty()) {
      continue;
    }
    return InvalidArgument(fmt::format("a change of \"{}\" is no change of a key",
                                       ToUtf8(change.key().substr(0, 80))));
  }
  if (bytes <= JobIntake::kMaxSourceBytes) return absl::OkStatus();
  return InvalidArgument("changes of keys (--set, flags, variables) take more than 1 MiB");
}

}  // namespace

absl::Status JobIntake::CheckFolders(const FolderReader& reader, spec::Resolution& resolution) {
  const spec::JobSpec& spec = resolution.spec;
  std::vector<std::pair<std::string, std::string>> places = {{"job.model", spec.job.model},
                                                             {"job.adapter", spec.job.adapter}};
  for (auto& [key, path] : NodeFiles(spec)) {
    places.emplace_back(key.starts_with(kMixture) ? kMixture : key, std::move(path));
  }
  for (const auto& [key, path] : places) {
    const std::vector<std::string> named = JobsInPaths({path});
    std::vector<std::string> readable;
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(readable, ReadableJobs(db, reader, named));
      return absl::OkStatus();
    }));
    for (const std::string& id : named) {
      if (std::find(readable.begin(), readable.end(), id) != readable.end()) continue;
      AddProblem(resolution, key,
                 fmt::format("{} is not there: your project has no job {}, and what is below a "
                             "job's folder is its project's",
                             path, id));
      break;
    }
  }
  return absl::OkStatus();
}

void JobIntake::CheckNotify(bool ask_names, spec::Resolution& resolution) {
  const spec::JobSpec::Notify& notify = resolution.spec.notify;
  for (const std::string& address : notify.mail) {
    const std::string problem = mail_.Problem(address);
    if (problem.empty() || IsFaulty(resolution, "notify.mail")) continue;
    AddProblem(resolution, "notify.mail", problem);
  }
  const bool asks = hooks_ != nullptr && ask_names && !notify.webhook.empty();
  if (!asks || IsFaulty(resolution, "notify.webhook")) return;
  const std::string problem = hooks_->Problem(notify.webhook);
  if (!problem.empty()) AddProblem(resolution, "notify.webhook", problem);
}

absl::StatusOr<spec::Resolution> JobIntake::Read(
    const std::string& text, const std::string& file_name, const Overrides& overrides,
    const FolderReader& reader, const PrepareOptions& way, Planner::LayoutChoice* layout) {
  const JobRecord* const resumed = way.resumed;
  SFT_RETURN_IF_ERROR(CheckSizes(text, file_name, overrides));
  std::vector<spec::Override> list;
  for (const v1::Override& override : overrides) {
    list.push_back({override.key(), override.value(), override.origin(), KindOf(override.kind()),
                    resumed != nullptr && WasTaken(*resumed, override)});
  }
  SFT_ASSIGN_OR_RETURN(const auto fleet, planner_.fleet().Get());
  spec::ResolveOptions options{.taken_before = resumed != nullptr};
  if (fleet->types.size() == 1) options.default_gpu_type = fleet->types.begin()->first;
  SetDay(jobs_.clock().Wall(), resumed, options);
  spec::Resolution resolution = spec::ResolveInSomeLayout({text, file_name, list, options});
  SFT_RETURN_IF_ERROR(TakeTemplateArguments(store_, reader.project, resolution));
  SFT_RETURN_IF_ERROR(TakeModelOfJob(store_, reader.project, resolution));
  SFT_RETURN_IF_ERROR(PinCheckpoint(store_, reader.project, resolution));
  SFT_RETURN_IF_ERROR(CheckFolders(reader, resolution));
  if (judges_ != nullptr) SFT_RETURN_IF_ERROR(judges_->Check(reader.project, resolution));
  CheckNotify(way.ask_hub, resolution);
  WarnLate(jobs_.clock().Wall(), resolution);
  // Before the first worker has come nothing is known, and the job waits and says so.
  if (resolution.spec.trains()) ResolveComputeType(*fleet, resolution);
  if (fleet->has_nodes) {
    CheckVariant(*fleet, resolution);
    CheckGraderPrograms(*fleet, resolution);
    SFT_RETURN_IF_ERROR(PinModel(planner_.fleet(), way.ask_hub ? planner_.hub() : nullptr,
                                 reader.project, resumed, resolution));
    SFT_RETURN_IF_ERROR(CheckModel(store_, planner_.fleet(), reader, resolution));
  }
  bool fits_none = false;
  if (resolution.ok()) {
    const spec::JobText job{text, file_name, list, options};
    Planner::LayoutChoice choice = planner_.ChooseLayout(job, resolution);
    LeaveUnplanned(choice, job, resolution);
    SetLayout(choice, resolution);
    fits_none = choice.fits_none;
    if (layout != nullptr) *layout = std::move(choice);
    SetPrecision(planner_.ChoosePrecision(resolution.spec), resolution);
  }
  const std::string& model = resolution.spec.job.model;
  if (!model.empty() && !IsFaulty(resolution, "job.model")) {
    std::optional<spec::Problem> problem = planner_.CheckModel(resolution.spec, resolution.ok());
    if (problem.has_value() && !IsFaulty(resolution, problem->key)) {
      if (fits_none) {
        problem->message +=
            fmt::format("; no other layout of its {} GPUs fits", resolution.spec.compute.gpu_count);
      }
      AddProblem(resolution, problem->key, problem->message);
      return resolution;
    }
    for (spec::Problem& warning : planner_.WarnOfModel(resolution.spec)) {
      const spec::ResolvedValue* value = FindValue(resolution, warning.key);
      if (value != nullptr) warning.line = value->line;
      resolution.warnings.push_back(std::move(warning));
    }
  }
  return resolution;
}

absl::StatusOr<v1::ResolveJobResponse> JobIntake::Resolve(const v1::ResolveJobRequest& request,
                                                          const std::string& principal) {
  FolderReader reader{principal, ""};
  if (request.for_submit()) {
    SFT_RETURN_IF_ERROR(CheckProject(request.project()));
    SFT_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
    reader.project = ProjectOf(request.project());
  }
  Planner::LayoutChoice layout;
  SFT_ASSIGN_OR_RETURN(spec::Resolution resolution, Read(request.source_text(), request.file_name(),
                                                         request.overrides(), reader, {}, &layout));
  if (request.for_submit() && resolution.ok()) {
    v1::SubmitJobRequest submit;
    submit.set_project(request.project());
    submit.set_request_id(request.request_id());
    const JobRecord job = MakeJob(submit, resolution, principal);
    SFT_RETURN_IF_ERROR(CheckSchedule(job, /*together=*/1, resolution));
    std::vector<JobFileRecord> files;
    SFT_RETURN_IF_ERROR(CheckAdapter(store_, job.project, resolution, files));
    SFT_RETURN_IF_ERROR(CheckRoom(job, {}));
  }
  v1::ResolveJobResponse response;
  response.set_checked_for_submit(request.for_submit());
  for (const auto& problem : resolution.problems) ToProto(problem, *response.add_problems());
  for (const auto& warning : resolution.warnings) ToProto(warning, *response.add_warnings());
  for (const auto& value : resolution.values) {
    auto* added = response.add_resolved();
    added->set_key(value.key);
    added->set_value(value.text);
    added->set_origin(value.origin);
  }
  // Also of a job with problems: a missing file is told together with them.
  for (const spec::NeededFile& file : spec::NeededFiles(resolution)) {
    if (IsFaulty(resolution, file.key)) continue;
    auto* added = response.add_needed_files();
    added->set_key(file.key);
    added->set_path(file.path);
    added->set_from_override(file.from_override);
    added->set_line(file.line);
  }
  if (!resolution.ok()) return response;
  response.set_resolved_json(store::SpecText(resolution.spec));
  *response.mutable_plan() =
      planner_.Plan(resolution.spec, reader.project.empty() ? kDefaultProject : reader.project);
  response.mutable_plan()->mutable_layouts()->Assign(layout.layouts.begin(), layout.layouts.end());
  response.mutable_plan()->set_layout_reason(layout.reason);
  return response;
}

absl::StatusOr<std::optional<DatasetRecord>> JobIntake::FindSent(const std::string& project,
                                                                 const std::string& sha256) {
  std::optional<DatasetRecord> dataset;
  if (!blobs_.PathOf(sha256).ok()) return dataset;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const bool owns, store::OwnsDataset(db, project, sha256));
    if (!owns) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(dataset, store::FindDataset(db, sha256));
    return absl::OkStatus();
  }));
  return dataset;
}

absl::StatusOr<JobIntake::Files> JobIntake::CheckFiles(const v1::SubmitJobRequest& request,
                                                       spec::Resolution& resolution) {
  Files files;
  for (const v1::JobFile& file : request.files()) {
    const bool sound =
        file.client_path().size() <= kMaxNameBytes && FindHidden(file.client_path()).empty();
    if (!sound)
      return InvalidArgument(
          fmt::format("the path of the file of {} is too long or holds a control character",
                      ToUtf8(file.key().substr(0, 80))));
  }
  const auto need = [&files](const std::string& key, int protocol) {
    files.protocol = std::max(files.protocol, protocol);
    if (protocol > 1) files.newer.push_back(fmt::format("{} (how its rows stand)", key));
  };
  const absl::StatusOr<std::vector<spec::TrainPart>> parts = spec::TrainParts(resolution.spec);
  const spec::JobSpec::Data& data = resolution.spec.data;
  bool all_counted = true;  // files of the node and tables are not
  for (const spec::NeededFile& needed : spec::NeededFiles(resolution)) {
    const auto sent =
        std::find_if(request.files().begin(), request.files().end(),
                     [&](const v1::JobFile& file) { return file.key() == needed.key; });
    std::optional<DatasetRecord> dataset;
    if (sent != request.files().end()) {
      SFT_ASSIGN_OR_RETURN(dataset, FindSent(ProjectOf(request.project()), sent->sha256()));
    }
    if (!dataset.has_value()) {
      files.missing.push_back(needed.key);
      continue;
    }
    const std::string key = needed.key.starts_with(kMixture) ? std::string(kMixture) : needed.key;
    const size_t part = spec::PartOfKey(needed.key);
    const bool trains = parts.ok() && part < parts->size();
    std::string problem;
    double samples_of_row = 1;
    if (resolution.spec.generates() && !resolution.spec.evaluates()) {
      SFT_ASSIGN_OR_RETURN(const std::string path, blobs_.PathOf(sent->sha256()));
      problem = PromptsProblem(path, sent->client_path(), data.max_examples);
    } else {
      absl::StatusOr<DatasetRecord> checked = WithVerdict(store_, blobs_, *std::move(dataset));
      if (absl::IsInvalidArgument(checked.status())) {
        AddProblem(resolution, key,
                   fmt::format("{}: {}", sent->client_path(), Message(checked.status())));
        continue;
      }
      if (!checked.ok()) return checked.status();
      dataset = *std::move(checked);
      need(key, dataset->protocol);
      SFT_ASSIGN_OR_RETURN(RowsFound rows, FindRows(blobs_, *dataset, resolution.spec,
                                                    trains ? (*parts)[part].max_examples : 0));
      problem = std::move(rows.problem);
      samples_of_row = rows.samples_of_row;
    }
    if (!problem.empty()) {
      AddProblem(resolution, key, fmt::format("{}: {}", sent->client_path(), problem));
    }
    all_counted = all_counted && (!trains || dataset->rows > 0);
    if (trains) files.rows += SamplesOfEpoch((*parts)[part], dataset->rows, samples_of_row);
    files.found.push_back({needed.key, dataset->sha256, dataset->size, sent->client_path(), ""});
  }
  for (auto& [key, path] : NodeFiles(resolution.spec)) {
    if (key != "data.val") all_counted = false;
    need(key, data::ProtocolOfName(path));
    files.found.push_back({key, "", 0, "", std::move(path)});
  }
  if (!all_counted) files.rows = 0;
  return files;
}

absl::Status JobIntake::CheckSchedule(const JobRecord& job, int together,
                                      spec::Resolution& resolution) {
  const absl::Status allowed = store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const ProjectLimits limits, store::GetLimits(db, job.project));
    if (std::string problem = PriorityProblem(limits, job); !problem.empty()) {
      AddProblem(resolution, "scheduling.priority", std::move(problem));
    }
    for (const std::string& id : job.schedule.after) {
      const absl::StatusOr<JobRecord> other = store::FindJob(db, {job.project, id});
      if (!other.ok()) {
        AddProblem(resolution, "scheduling.after", std::string(Message(other.status())));
      } else if (other->state == JobState::kFailed || other->state == JobState::kCancelled) {
        AddProblem(
            resolution, "scheduling.after",
            fmt::format("{} has {}: this job could never start", id, ToString(other->state)));
      }
    }
    if (std::string problem = SizeProblem(limits, job); !problem.empty()) {
      AddProblem(resolution, KeyOfCount(resolution), std::move(problem));
    }
    return CheckPending(db, limits, together);
  });
  const bool repeated =
      absl::IsResourceExhausted(allowed) && jobs_.Knows(job.project, job.request_id);
  return repeated ? absl::OkStatus() : allowed;
}

absl::Status JobIntake::CheckRoom(const JobRecord& job, const std::vector<JobFileRecord>& files) {
  if (limits_ == nullptr) return absl::OkStatus();
  const absl::Status room = limits_->CheckSubmit(job.project, files);
  return room.ok() || jobs_.Knows(job.project, job.request_id) ? absl::OkStatus() : room;
}

absl::StatusOr<JobIntake::Prepared> JobIntake::Prepare(const v1::SubmitJobRequest& request,
                                                       const std::string& principal,
                                                       const PrepareOptions& options) {
  SFT_RETURN_IF_ERROR(CheckProject(request.project()));
  SFT_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  SFT_RETURN_IF_ERROR(CheckMetadata(request.metadata()));
  SFT_ASSIGN_OR_RETURN(spec::Resolution resolution,
                       Read(request.source_text(), request.file_name(), request.overrides(),
                            {principal, ProjectOf(request.project())}, options));
  if (options.resumed != nullptr) CheckFixedValues(*options.resumed, resolution);
  Prepared prepared;
  Outcome& outcome = prepared.outcome;
  outcome.problems = resolution.problems;
  if (!outcome.problems.empty()) return prepared;
  prepared.job = MakeJob(request, resolution, principal);
  SFT_RETURN_IF_ERROR(CheckSchedule(prepared.job, options.together, resolution));
  SFT_ASSIGN_OR_RETURN(Files files, CheckFiles(request, resolution));
  prepared.files = std::move(files.found);
  outcome.missing_files = std::move(files.missing);
  prepared.job.protocol = std::max(prepared.job.protocol, files.protocol);
  for (const std::string& key : files.newer) {
    prepared.job.newer_keys += (prepared.job.newer_keys.empty() ? "" : ", ") + key;
  }
  if (options.resumed == nullptr || ReadsAdapterOnResume(resolution.spec)) {
    SFT_RETURN_IF_ERROR(CheckAdapter(store_, prepared.job.project, resolution, prepared.files));
  }
  if (request.validate_only()) {
    outcome.missing_files.clear();
  } else {
    if (outcome.missing_files.empty()) {
      SFT_RETURN_IF_ERROR(CheckRoom(prepared.job, prepared.files));
    }
    const Planner::Run run = planner_.ExpectedRun(resolution.spec, files.rows);
    prepared.job.schedule.planned_us = run.duration_us;
    prepared.job.schedule.planned_steps = run.steps;
  }
  outcome.problems = resolution.problems;
  return prepared;
}

absl::StatusOr<JobIntake::Outcome> JobIntake::Submit(const v1::SubmitJobRequest& request,
                                                     const Actor& actor) {
  if (request.again()) {
    SFT_ASSIGN_OR_RETURN(std::optional<v1::Job> made, jobs_.FindMade(request, actor));
    if (made.has_value()) {
      Outcome outcome;
      outcome.job = *std::move(made);
      return outcome;
    }
  }
  SFT_ASSIGN_OR_RETURN(Prepared prepared, Prepare(request, actor.name));
  Outcome outcome = std::move(prepared.outcome);
  if (!outcome.problems.empty() || !outcome.missing_files.empty()) return outcome;
  if (request.validate_only()) {
    prepared.job.id.clear();
    outcome.job = server::ToProto(prepared.job, store::SpecText(*prepared.job.spec));
    outcome.job.clear_name();
    return outcome;
  }
  SFT_ASSIGN_OR_RETURN(outcome.job, jobs_.Submit(std::move(prepared.job), prepared.files, actor));
  return outcome;
}

absl::StatusOr<JobIntake::Outcome> JobIntake::Resume(const v1::ResumeJobRequest& request,
                                                     const Actor& actor) {
  SFT_RETURN_IF_ERROR(CheckResumeRequest(request));
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(request.name()));
  if (limits_ != nullptr) {
    std::string project;
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(project, store::ProjectOfJob(db, ref.id));
      return absl::OkStatus();
    }));
    const absl::Status room = limits_->CheckSubmit(project, {});
    if (!room.ok() && !jobs_.Knows(project, request.request_id())) return room;
  }
  Outcome outcome;
  if (request.overrides().empty()) {
    SFT_ASSIGN_OR_RETURN(outcome.job, jobs_.Resume(request, actor));
    return outcome;
  }
  JobRecord ended;
  std::vector<JobFileRecord> files;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(ended, store::FindJob(db, ref));
    SFT_RETURN_IF_ERROR(store::ReadTexts(db, ended));
    SFT_ASSIGN_OR_RETURN(const auto checkpoints, ResumeCandidates(db, ended));
    SFT_RETURN_IF_ERROR(CheckResumable(ended, checkpoints, request.step()));
    SFT_ASSIGN_OR_RETURN(files, store::FilesOfJob(db, ended.id));
    return absl::OkStatus();
  }));
  SFT_ASSIGN_OR_RETURN(Prepared prepared, Prepare(SubmitOfResume(ended, files, request), actor.name,
                                                  {.resumed = &ended}));
  outcome = std::move(prepared.outcome);
  outcome.file_name = ended.file_name;
  if (!outcome.problems.empty()) return outcome;
  if (!outcome.missing_files.empty()) {
    return FailedPrecondition(
        fmt::format("job {} cannot go on: {} was not uploaded for it, or was "
                    "removed; submit the job again",
                    ended.id, fmt::join(outcome.missing_files, ", ")));
  }
  SFT_ASSIGN_OR_RETURN(outcome.job, jobs_.Resume(request, actor, &prepared.job));
  return outcome;
}

}  // namespace sft::server
