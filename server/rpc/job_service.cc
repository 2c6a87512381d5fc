#include "server/rpc/job_service.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/rpc/status.h"
#include "server/rpc/page_token.h"
#include "server/rpc/principal.h"
#include "server/state/names.h"

namespace sft::server {
namespace {

constexpr size_t kMaxReason = 500;

template <typename Message>
grpc::Status Answer(absl::StatusOr<Message> answer, Message* response) {
  if (!answer.ok()) return rpc::ToGrpc(answer.status());
  *response = *std::move(answer);
  return grpc::Status::OK;
}

grpc::Status Refuse(const std::vector<spec::Problem>& problems, const std::string& file) {
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

grpc::Status RefuseOutcome(const JobIntake::Outcome& outcome, const std::string& file_name) {
  if (!outcome.problems.empty()) return Refuse(outcome.problems, file_name);
  if (outcome.missing_files.empty()) return grpc::Status::OK;
  return rpc::WithReason(FailedPrecondition(fmt::format("files were not uploaded as data sets: {}",
                                                        fmt::join(outcome.missing_files, ", "))),
                         "FILE_NOT_UPLOADED");
}

grpc::Status JobServiceImpl::ResolveJob(grpc::ServerContext* context,
                                        const v1::ResolveJobRequest* request,
                                        v1::ResolveJobResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  absl::StatusOr<v1::ResolveJobResponse> resolved =
      intake_.Resolve(*request, PrincipalOf(*context));
  if (!resolved.ok()) return rpc::ToGrpc(resolved.status());
  *response = *std::move(resolved);
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::SubmitJob(grpc::ServerContext* context,
                                       const v1::SubmitJobRequest* request, v1::Job* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  v1::SubmitJobRequest asked = *request;
  // The hash of a request knows the default project as the empty one, as it always did.
  if (ProjectOf(*context) != kDefaultProject) asked.set_project(ProjectOf(*context));
  absl::StatusOr<JobIntake::Outcome> outcome = intake_.Submit(asked, PrincipalOf(*context));
  if (!outcome.ok()) return rpc::ToGrpc(outcome.status());
  const grpc::Status refused = RefuseOutcome(*outcome, request->file_name());
  if (!refused.ok()) return refused;
  *response = std::move(outcome->job);
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                                    v1::Job* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  return Answer(jobs_.Get(request->name()), response);
}

grpc::Status JobServiceImpl::ListJobs(grpc::ServerContext* context,
                                      const v1::ListJobsRequest* request,
                                      v1::ListJobsResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  const absl::StatusOr<int> size = PageSize(request->page_size(), store::kMaxPage);
  if (!size.ok()) return rpc::ToGrpc(size.status());
  const absl::StatusOr<int64_t> before = FromToken(request->page_token());
  if (!before.ok()) return rpc::ToGrpc(before.status());
  store::JobFilter filter;
  filter.limit = *size;
  filter.before_sequence = *before;
  filter.project = request->project();
  filter.sweep = request->sweep();
  filter.visible = VisibleTo(CallerOf(*context));
  for (const int state : request->states()) {
    if (!v1::Job::State_IsValid(state)) {
      return rpc::ToGrpc(InvalidArgument(fmt::format("states: {} is no state of a job", state)));
    }
    filter.states.push_back(static_cast<JobState>(state));
  }
  absl::StatusOr<JobManager::Page> page = jobs_.List(std::move(filter));
  if (!page.ok()) return rpc::ToGrpc(page.status());
  for (v1::Job& job : page->jobs) *response->add_jobs() = std::move(job);
  response->set_next_page_token(ToToken(page->next_sequence));
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::CancelJob(grpc::ServerContext* context,
                                       const v1::CancelJobRequest* request, v1::Job* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  return Answer(
      jobs_.Cancel(request->name(), request->reason().substr(0, kMaxReason), request->checkpoint()),
      response);
}

grpc::Status JobServiceImpl::CheckpointJob(grpc::ServerContext* context,
                                           const v1::CheckpointJobRequest* request,
                                           v1::CheckpointJobResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  return Answer(checkpoints_.Ask(*request), response);
}

grpc::Status JobServiceImpl::ResumeJob(grpc::ServerContext* context,
                                       const v1::ResumeJobRequest* request, v1::Job* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  absl::StatusOr<JobIntake::Outcome> outcome = intake_.Resume(*request, PrincipalOf(*context));
  if (!outcome.ok()) return rpc::ToGrpc(outcome.status());
  const grpc::Status refused = RefuseOutcome(*outcome, outcome->file_name);
  if (!refused.ok()) return refused;
  *response = std::move(outcome->job);
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::ListCheckpoints(grpc::ServerContext* context,
                                             const v1::ListCheckpointsRequest* request,
                                             v1::ListCheckpointsResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  return Answer(checkpoints_.List(request->name()), response);
}

grpc::Status JobServiceImpl::ListEvents(grpc::ServerContext* context,
                                        const v1::ListEventsRequest* request,
                                        v1::ListEventsResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  const absl::StatusOr<int> size = PageSize(request->page_size(), store::kMaxPage);
  if (!size.ok()) return rpc::ToGrpc(size.status());
  const absl::StatusOr<int64_t> after = FromToken(request->page_token());
  if (!after.ok()) return rpc::ToGrpc(after.status());
  absl::StatusOr<std::vector<v1::JobEvent>> events = jobs_.Events(request->name(), *after, *size);
  if (!events.ok()) return rpc::ToGrpc(events.status());
  if (static_cast<int>(events->size()) == *size) {
    response->set_next_page_token(ToToken(events->back().sequence()));
  }
  for (v1::JobEvent& event : *events) *response->add_events() = std::move(event);
  return grpc::Status::OK;
}

}  // namespace sft::server
