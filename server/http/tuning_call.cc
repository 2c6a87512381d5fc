#include "server/http/tuning_call.h"

#include <fmt/format.h>

#include <optional>
#include <set>

#include "common/base/json.h"
#include "common/io/sha256.h"
#include "common/rpc/status.h"
#include "server/http/tuned_models.h"
#include "server/openai/errors.h"
#include "server/openai/tuned.h"
#include "sft/v1/auth_service.pb.h"
#include "sft/v1/file_service.pb.h"
#include "sft/v1/scheduling_service.pb.h"

namespace sft::server {
namespace {

constexpr std::string_view kTuningJobs = "/jobs";
constexpr int kMostTuned = 100, kMostListed = 100, kUsualLimit = 20, kEventsPage = 500;

// "after" and "limit".
absl::StatusOr<std::pair<std::string, int>> ReadPage(const OpenAiDoor& door, int most, int usual) {
  SFT_ASSIGN_OR_RETURN(const auto query, door.ReadQueryOf({"after", "limit"}));
  std::pair<std::string, int> page{"", usual};
  for (const auto& [name, value] : query) {
    if (name == "after") page.first = value;
    if (name == "limit") {
      SFT_ASSIGN_OR_RETURN(page.second, openai::ReadLimit(value, most));
    }
  }
  return page;
}

// What is wrong with the job, by the parameters of the request.
absl::Status RefusalOf(const openai::FineTuning& asked, const absl::Status& status) {
  const auto violations = rpc::ViolationsOf(rpc::ToGrpc(status));
  if (!absl::IsInvalidArgument(status)) return status;
  // The one thing of a job that is no key of its file.
  if (Message(status).starts_with("metadata: "))
    return openai::ParamError("metadata", std::string(Message(status)));
  if (violations.empty()) return status;
  std::string message;
  for (const rpc::FieldViolation& each : violations) {
    // The lines of a job file that nobody has written say nothing.
    std::string_view what = each.description;
    if (what.starts_with("line ")) what.remove_prefix(std::min(what.find(": ") + 2, what.size()));
    message += fmt::format("{}{}: {}", message.empty() ? "" : "; ",
                           openai::ParamOfKey(asked, each.field), what);
  }
  return openai::ParamError(openai::ParamOfKey(asked, violations.front().field), message);
}

}  // namespace

absl::Status TuningCall::Serve(const std::string& path) {
  const absl::Status nothing = NotFound(
      "there are /v1/fine_tuning/jobs, and of a job cancel, pause, resume, events and "
      "checkpoints");
  if (!path.starts_with(kTuningJobs)) return nothing;
  const std::string_view rest = std::string_view(path).substr(kTuningJobs.size());
  if (rest.empty() || rest == "/") {
    if (door_.posts()) return Create();
    if (door_.gets()) return List();
    return absl::UnimplementedError("/v1/fine_tuning/jobs is asked with GET and POST");
  }
  if (rest.front() != '/') return nothing;
  const size_t end = std::min(rest.find('/', 1), rest.size());
  const std::string id = DecodedPath(rest.substr(1, end - 1));
  const std::string_view what = rest.substr(std::min(end + 1, rest.size()));
  static const std::set<std::string_view> kActs = {"cancel", "pause", "resume"};
  static const std::set<std::string_view> kParts = {"", "events", "checkpoints"};
  if (!kActs.contains(what) && !kParts.contains(what)) return nothing;
  const bool acts = kActs.contains(what);
  if (acts ? !door_.posts() : !door_.gets()) {
    return absl::UnimplementedError(
        fmt::format("{} is asked with {}", what.empty() ? "a job" : what, acts ? "POST" : "GET"));
  }
  return acts ? Act(id, what) : Of(id, what);
}

absl::Status TuningCall::Create() {
  // Before a byte of the body is read: who it is.
  SFT_RETURN_IF_ERROR(
      door_.CallOnce<v1::Identity>("AuthService.WhoAmI", v1::WhoAmIRequest()).status());
  SFT_ASSIGN_OR_RETURN(const std::string body, door_.Body());
  SFT_ASSIGN_OR_RETURN(const openai::FineTuning asked,
                       door_.parsers.Run([&] { return openai::ReadFineTuning(body); }));
  const std::string key =
      io::Sha256Hex(fmt::format("{}\n{}\n{}", door_.origin().authorization, door_.project(), body));
  // The first one may still be on its way to a job.
  if (door_.repeats()) creates_.Await(key, [this] { return door_.http.Gone(); });
  const OpenAiCreates::Place place(creates_, key);
  SFT_ASSIGN_OR_RETURN(v1::SubmitJobRequest submit, MakeSubmit(asked));
  submit.set_request_id(std::string(door_.Field("idempotency-key")));
  submit.set_again(submit.request_id().empty() && door_.repeats());
  const auto job = door_.CallOnce<v1::Job>("JobService.SubmitJob", submit);
  if (!job.ok()) return RefusalOf(asked, job.status());
  return door_.Respond(DumpJson(openai::JobJson(*job)));
}

absl::StatusOr<v1::SubmitJobRequest> TuningCall::MakeSubmit(const openai::FineTuning& asked) {
  SFT_ASSIGN_OR_RETURN(const v1::File training, File(asked.training_file, "training_file"));
  std::optional<v1::File> validation;
  if (!asked.validation_file.empty()) {
    SFT_ASSIGN_OR_RETURN(validation, File(asked.validation_file, "validation_file"));
  }
  std::string base = asked.model, adapter;
  if (const auto trained = openai::JobOfModelName(asked.model); trained.has_value()) {
    SFT_ASSIGN_OR_RETURN(const v1::Job job, GetTuned(door_, *trained, "model"));
    const bool whole = openai::ValueOfKey(job, "training.mode") == "full_finetune";
    base = whole ? *trained : job.model();
    if (!whole) adapter = *trained;
  }
  v1::SubmitJobRequest submit = openai::SubmitOf(asked, base, adapter, training,
                                                 validation.has_value() ? &*validation : nullptr);
  submit.set_project(door_.project().empty() ? training.project() : door_.project());
  const auto of_other = [&](const v1::File& file, const char* param) {
    return openai::ParamError(param, fmt::format("{} is of project {}, and the job of {}", param,
                                                 file.project(), submit.project()));
  };
  if (training.project() != submit.project()) return of_other(training, "training_file");
  if (validation.has_value() && validation->project() != submit.project()) {
    return of_other(*validation, "validation_file");
  }
  if (!asked.learning_rate_multiplier.has_value()) return submit;
  SFT_ASSIGN_OR_RETURN(
      const auto resolved,
      door_.CallOnce<v1::ResolveJobResponse>("JobService.ResolveJob", openai::ResolveOf(submit)));
  // Which the submit tells, all together.
  if (!resolved.problems().empty()) return submit;
  SFT_RETURN_IF_ERROR(openai::SetLearningRate(*asked.learning_rate_multiplier, resolved, submit));
  return submit;
}

absl::StatusOr<v1::File> TuningCall::File(const std::string& id, const char* param) {
  v1::GetFileRequest get;
  get.set_name("files/" + id);
  auto file = door_.CallOnce<v1::File>("FileService.GetFile", get);
  if (!absl::IsNotFound(file.status())) return file;
  // What a request names in its body is a bad value there, and no missing page.
  return openai::ParamError(param, fmt::format("{}: {}", param, Message(file.status())));
}

absl::Status TuningCall::List() {
  SFT_ASSIGN_OR_RETURN(const auto query, door_.ReadQueryOf({"after", "limit", "metadata"}));
  v1::ListJobsRequest list;
  int limit = kUsualLimit;
  for (const auto& [name, value] : query) {
    if (name == "after") {
      list.set_after(openai::JobIdOf(value));
    } else if (name == "limit") {
      SFT_ASSIGN_OR_RETURN(limit, openai::ReadLimit(value, kMostTuned));
    } else if (name == "metadata" && value == "null") {
      list.set_without_metadata(true);
    } else if (name.starts_with("metadata[") && name.ends_with(']')) {
      (*list.mutable_metadata())[name.substr(9, name.size() - 10)] = value;
    } else {
      return openai::ParamError("metadata", "metadata is asked for as metadata[KEY]=VALUE");
    }
  }
  list.set_page_size(limit + 1);
  list.set_project(door_.project());
  list.add_kinds(v1::Job::SFT);
  const auto found = door_.CallOnce<v1::ListJobsResponse>("JobService.ListJobs", list);
  if (!found.ok()) {
    return openai::InParam("after", openai::NotFoundIn("after", found.status()));
  }
  std::vector<openai::Json> jobs;
  for (const v1::Job& each : found->jobs()) {
    if (static_cast<int>(jobs.size()) == limit) break;
    // The list has them without their values.
    SFT_ASSIGN_OR_RETURN(const v1::Job job, GetTuned(door_, each.name(), "after"));
    jobs.push_back(openai::JobJson(job));
  }
  return door_.Respond(openai::ListJson(std::move(jobs), found->jobs_size() > limit));
}

absl::Status TuningCall::Of(const std::string& id, std::string_view what) {
  SFT_ASSIGN_OR_RETURN(const v1::Job job, GetTuned(door_, id, "fine_tuning_job_id"));
  if (what == "events") return Events(job);
  if (what == "checkpoints") return Checkpoints(job);
  return door_.Respond(DumpJson(openai::JobJson(job)));
}

absl::Status TuningCall::Act(const std::string& id, std::string_view what) {
  SFT_ASSIGN_OR_RETURN(const v1::Job job, GetTuned(door_, id, "fine_tuning_job_id"));
  SFT_RETURN_IF_ERROR(door_.NoBody());
  absl::StatusOr<v1::Job> done;
  if (what == "cancel") {
    v1::CancelJobRequest cancel;
    cancel.set_name(job.name());
    done = door_.CallOnce<v1::Job>("JobService.CancelJob", cancel);
  } else if (what == "pause") {
    v1::HoldJobRequest hold;
    hold.set_name(job.name());
    hold.set_pause(true);
    hold.set_reason("paused");
    done = door_.CallOnce<v1::Job>("SchedulingService.HoldJob", hold);
  } else {
    v1::ReleaseJobRequest release;
    release.set_name(job.name());
    done = door_.CallOnce<v1::Job>("SchedulingService.ReleaseJob", release);
  }
  if (!done.ok()) return done.status();
  return door_.Respond(DumpJson(openai::JobJson(*done)));
}

absl::Status TuningCall::ReadCurve(const v1::Job& job,
                                   const std::function<void(const v1::Metric& point)>& take) {
  v1::ReadMetricsRequest read;
  read.set_name(job.name());
  return door_.Call("JobService.ReadMetrics", read, [&](const google::protobuf::Message& message) {
    const auto& points = static_cast<const v1::ReadMetricsResponse&>(message);
    for (const v1::Metric& point : points.metrics()) take(point);
    return true;
  });
}

absl::Status TuningCall::Events(const v1::Job& job) {
  SFT_ASSIGN_OR_RETURN(const auto asked, ReadPage(door_, kMostListed, kUsualLimit));
  SFT_ASSIGN_OR_RETURN(openai::EventPage page,
                       openai::EventPage::Make(asked.first, static_cast<size_t>(asked.second)));
  v1::ListEventsRequest list;
  list.set_name(job.name());
  list.set_page_size(kEventsPage);
  do {
    SFT_ASSIGN_OR_RETURN(const auto events,
                         door_.CallOnce<v1::ListEventsResponse>("JobService.ListEvents", list));
    for (const v1::JobEvent& event : events.events()) page.Add(event);
    list.set_page_token(events.next_page_token());
  } while (!list.page_token().empty());
  SFT_RETURN_IF_ERROR(ReadCurve(job, [&](const v1::Metric& point) { page.Add(point); }));
  return door_.Respond(page.Json());
}

absl::Status TuningCall::Checkpoints(const v1::Job& job) {
  SFT_ASSIGN_OR_RETURN(const auto asked, ReadPage(door_, kMostTuned, /*usual=*/10));
  const auto& [after, limit] = asked;
  v1::ListCheckpointsRequest list;
  list.set_name(job.name());
  SFT_ASSIGN_OR_RETURN(const auto all, door_.CallOnce<v1::ListCheckpointsResponse>(
                                           "JobService.ListCheckpoints", list));
  auto from = all.checkpoints().begin();
  if (!after.empty()) {
    from = std::ranges::find_if(all.checkpoints(), [&](const v1::Checkpoint& each) {
      return openai::CheckpointId(job, each) == after;
    });
    if (from == all.checkpoints().end()) {
      return openai::ParamError("after", "after is no checkpoint of this job that still exists");
    }
    ++from;
  }
  const auto left = static_cast<int>(all.checkpoints().end() - from);
  const auto end = from + std::min(left, limit);
  std::set<int64_t> steps;
  for (auto each = from; each != end; ++each) steps.insert(each->step());
  std::vector<v1::Metric> points;
  SFT_RETURN_IF_ERROR(ReadCurve(job, [&](const v1::Metric& point) {
    if (steps.contains(point.step())) points.push_back(point);
  }));
  std::vector<openai::Json> checkpoints;
  for (auto each = from; each != end; ++each) {
    checkpoints.push_back(openai::CheckpointJson(job, *each, points));
  }
  return door_.Respond(openai::ListJson(std::move(checkpoints), left > limit));
}

}  // namespace sft::server
