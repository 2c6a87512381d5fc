#include "server/services/job_service.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/rpc/status.h"
#include "server/door/page_token.h"
#include "server/services/job_list.h"
#include "server/state/names.h"

namespace sft::server {
namespace {

constexpr size_t kMaxReason = 500;

absl::Status Refuse(const std::vector<spec::Problem>& problems, const std::string& file) {
  std::vector<rpc::FieldViolation> violations;
  for (const spec::Problem& problem : problems) {
    violations.push_back(
        {problem.key, problem.line > 0 ? fmt::format("line {}: {}", problem.line, problem.message)
                                       : problem.message});
  }
  return rpc::BadRequest(fmt::format("{}: {} problem{}", file.empty() ? "job file" : file,
                                     problems.size(), problems.size() == 1 ? "" : "s"),
                         violations);
}

}  // namespace

absl::Status RefuseOutcome(const JobIntake::Outcome& outcome, const std::string& file_name) {
  if (!outcome.problems.empty()) return Refuse(outcome.problems, file_name);
  if (outcome.missing_files.empty()) return absl::OkStatus();
  return rpc::WithReason(FailedPrecondition(fmt::format("files were not uploaded as data sets: {}",
                                                        fmt::join(outcome.missing_files, ", "))),
                         "FILE_NOT_UPLOADED");
}

void JobService::AddTo(Methods& methods) {
  using enum Caller;
  using enum Place;
  constexpr Role kViewer = Role::kViewer, kSubmitter = Role::kSubmitter;
  constexpr Audit kChange = Audit::kChange;
  using Self = JobService;
  methods.Unary({"JobService.ResolveJob", kUser, kSubmitter, kAny}, this, &Self::ResolveJob);
  methods.Unary({"JobService.SubmitJob", kUser, kSubmitter, kProject, kChange}, this,
                &Self::SubmitJob);
  methods.Unary({"JobService.GetJob", kUser, kViewer, kNamed}, this, &Self::GetJob);
  methods.Unary({"JobService.ListJobs", kUser, kViewer, kOwn}, this, &Self::ListJobs);
  methods.Unary({"JobService.CancelJob", kUser, kSubmitter, kNamed, kChange}, this,
                &Self::CancelJob);
  methods.Unary({"JobService.CheckpointJob", kUser, kSubmitter, kNamed, kChange}, this,
                &Self::CheckpointJob);
  methods.Unary({"JobService.ResumeJob", kUser, kSubmitter, kNamed, kChange}, this,
                &Self::ResumeJob);
  methods.Unary({"JobService.ListCheckpoints", kUser, kViewer, kNamed}, this,
                &Self::ListCheckpoints);
  methods.Unary({"JobService.ListEvents", kUser, kViewer, kNamed}, this, &Self::ListEvents);
  methods.Follow({"JobService.WatchJob", kUser, kViewer, kNamed}, this, &Self::WatchJob);
  methods.Follow({"JobService.ReadMetrics", kUser, kViewer, kNamed}, this, &Self::ReadMetrics);
  methods.Unary({"JobService.GetCurve", kUser, kViewer, kNamed}, this, &Self::GetCurve);
  methods.Follow({"JobService.ReadLog", kUser, kViewer, kNamed}, this, &Self::ReadLog);
  methods.ServerStream({"JobService.ReadTensorBoard", kUser, kViewer, kNamed}, this,
                       &Self::ReadTensorBoard);
  methods.ServerStream({"JobService.Generate", kUser, kSubmitter, kNamed}, this, &Self::Generate);
  methods.ServerStream({"JobService.ProfileJob", kUser, kSubmitter, kNamed, kChange}, this,
                       &Self::ProfileJob);
}

absl::StatusOr<v1::ResolveJobResponse> JobService::ResolveJob(
    CallContext& call, const v1::ResolveJobRequest& request) {
  v1::ResolveJobRequest asked = request;
  // What it would wait for depends on its project.
  if (request.for_submit() || request.explain_wait()) {
    SFT_RETURN_IF_ERROR(call.AdmitProject(request.project()));
    asked.set_project(call.project());
  }
  const std::string who = call.caller().Title();
  SFT_ASSIGN_OR_RETURN(v1::ResolveJobResponse response, intake_.Resolve(asked, who));
  if (!request.explain_wait() || !response.problems().empty()) return response;
  v1::SubmitJobRequest submit;
  submit.set_source_text(request.source_text());
  submit.set_file_name(request.file_name());
  *submit.mutable_overrides() = request.overrides();
  submit.set_project(asked.project());
  SFT_ASSIGN_OR_RETURN(v1::WaitExplanation wait, waits_.ExplainNew(submit, who));
  if (!wait.reason().empty()) *response.mutable_plan()->mutable_wait() = std::move(wait);
  return response;
}

absl::StatusOr<v1::Job> JobService::SubmitJob(CallContext& call,
                                              const v1::SubmitJobRequest& request) {
  v1::SubmitJobRequest asked = request;
  // The hash of a request knows the default project as the empty one, as it always did.
  if (call.project() != kDefaultProject) asked.set_project(call.project());
  SFT_ASSIGN_OR_RETURN(JobIntake::Outcome outcome, intake_.Submit(asked, call.actor()));
  SFT_RETURN_IF_ERROR(RefuseOutcome(outcome, request.file_name()));
  return std::move(outcome.job);
}

absl::StatusOr<v1::Job> JobService::GetJob(CallContext&, const v1::GetJobRequest& request) {
  return jobs_.Get(request.name());
}

absl::StatusOr<v1::ListJobsResponse> JobService::ListJobs(CallContext& call,
                                                          const v1::ListJobsRequest& request) {
  SFT_ASSIGN_OR_RETURN(store::JobFilter filter, FilterOf(request, call.Visible()));
  if (!request.after().empty()) {
    SFT_ASSIGN_OR_RETURN(filter.after, jobs_.PlaceOf(request.after(), filter));
  }
  SFT_ASSIGN_OR_RETURN(const JobFields fields, JobFields::Named(request.fields()));
  SFT_ASSIGN_OR_RETURN(JobManager::Page page, jobs_.List(filter, fields, request.count()));
  v1::ListJobsResponse response;
  for (v1::Job& job : page.jobs) *response.add_jobs() = std::move(job);
  response.set_next_page_token(TokenOf(filter, page.next));
  response.set_total(page.total);
  response.set_filtered(!request.filter().empty());
  return response;
}

absl::StatusOr<v1::Job> JobService::CancelJob(CallContext& call,
                                              const v1::CancelJobRequest& request) {
  return jobs_.Cancel(request.name(), request.reason().substr(0, kMaxReason), request.checkpoint(),
                      call.actor());
}

absl::StatusOr<v1::CheckpointJobResponse> JobService::CheckpointJob(
    CallContext& call, const v1::CheckpointJobRequest& request) {
  return checkpoints_.Ask(request, call.actor());
}

absl::StatusOr<v1::Job> JobService::ResumeJob(CallContext& call,
                                              const v1::ResumeJobRequest& request) {
  SFT_ASSIGN_OR_RETURN(JobIntake::Outcome outcome, intake_.Resume(request, call.actor()));
  SFT_RETURN_IF_ERROR(RefuseOutcome(outcome, outcome.file_name));
  return std::move(outcome.job);
}

absl::StatusOr<v1::ListCheckpointsResponse> JobService::ListCheckpoints(
    CallContext&, const v1::ListCheckpointsRequest& request) {
  return checkpoints_.List(request.name());
}

absl::StatusOr<v1::ListEventsResponse> JobService::ListEvents(
    CallContext&, const v1::ListEventsRequest& request) {
  SFT_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size(), store::kMaxPage));
  SFT_ASSIGN_OR_RETURN(const int64_t after, FromToken(request.page_token()));
  SFT_ASSIGN_OR_RETURN(std::vector<v1::JobEvent> events, jobs_.Events(request.name(), after, size));
  v1::ListEventsResponse response;
  if (static_cast<int>(events.size()) == size) {
    response.set_next_page_token(ToToken(events.back().sequence()));
  }
  for (v1::JobEvent& event : events) *response.add_events() = std::move(event);
  return response;
}

}  // namespace sft::server
