#include "server/services/worker_service.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/store/attempts.h"
#include "server/store/jobs.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

// The job that has the attempt on the node now, and its project.
struct JobOfPart {
  std::string id, project;
};
template <typename Request>
absl::StatusOr<JobOfPart> FindJobOfPart(Database& db, const Request& request) {
  SFT_ASSIGN_OR_RETURN(const AttemptRecord attempt, store::GetAttempt(db, request.attempt_uid()));
  SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members,
                       store::MembersOf(db, request.attempt_uid()));
  const bool part = std::any_of(members.begin(), members.end(), [&](const MemberRecord& member) {
    return member.status.node == request.node();
  });
  if (!part) {
    return InvalidArgument(
        fmt::format("attempt {} is not on node {}", request.attempt_uid(), request.node()));
  }
  if (attempt.epoch != request.epoch() || IsTerminal(attempt.state)) {
    return FailedPrecondition(fmt::format("attempt {} is over", request.attempt_uid()));
  }
  SFT_ASSIGN_OR_RETURN(const std::string project, store::ProjectOfJob(db, attempt.job_id));
  return JobOfPart{attempt.job_id, project};
}

}  // namespace

void WorkerService::AddTo(Methods& methods) {
  const auto rule = [](std::string method) {
    return Rule{std::move(method), Caller::kNode, Role::kNone, Place::kServer};
  };
  using Self = WorkerService;
  methods.Standing(rule("WorkerService.Session"));
  methods.Unary(rule("WorkerService.AppendLog"), this, &Self::AppendLog);
  methods.Unary(rule("WorkerService.AppendEvents"), this, &Self::AppendEvents);
  methods.Unary(rule("WorkerService.CommitArtifact"), this, &Self::CommitArtifact);
  methods.Unary(rule("WorkerService.CommitCheckpoint"), this, &Self::CommitCheckpoint);
  methods.Unary(rule("WorkerService.GetHubToken"), this, &Self::GetHubToken);
  methods.Unary(rule("WorkerService.AskJudge"), this, &Self::AskJudge);
  methods.ServerStream(rule("WorkerService.FetchModelFile"), this, &Self::FetchModelFile);
  methods.ClientStream(rule("WorkerService.SendFile"), this, &Self::SendFile);
}

template <typename Request, typename Take>
auto WorkerService::Answer(const CallContext& call, const Request& request, const Take& take)
    -> decltype(take(request)) {
  if (!call.incarnation().empty()) {
    SFT_RETURN_IF_ERROR(registry_.CheckIncarnation(request.node(), call.incarnation()));
  }
  auto answer = take(request);
  if (absl::IsInvalidArgument(answer.status())) {
    registry_.refusals().Count(request.node(), answer.status());
  }
  return answer;
}

absl::StatusOr<v1::AppendLogResponse> WorkerService::AppendLog(
    CallContext& call, const v1::AppendLogRequest& request) {
  return Answer(call, request, [&](const auto& each) { return ingest_.AppendLog(each); });
}

absl::StatusOr<v1::AppendEventsResponse> WorkerService::AppendEvents(
    CallContext& call, const v1::AppendEventsRequest& request) {
  return Answer(call, request, [&](const auto& each) { return ingest_.AppendEvents(each); });
}

absl::StatusOr<v1::Artifact> WorkerService::CommitArtifact(
    CallContext& call, const v1::CommitArtifactRequest& request) {
  return Answer(call, request, [&](const auto& each) { return artifacts_.Commit(each); });
}

absl::StatusOr<v1::CommitCheckpointResponse> WorkerService::CommitCheckpoint(
    CallContext& call, const v1::CommitCheckpointRequest& request) {
  return Answer(call, request, [&](const auto& each) { return checkpoints_.Commit(each); });
}

// A node gets the token of a job's project while an attempt of the job is on it, and no other.
absl::StatusOr<v1::GetHubTokenResponse> WorkerService::GetHubToken(
    CallContext& call, const v1::GetHubTokenRequest& request) {
  return Answer(call, request, [&](const auto& each) -> absl::StatusOr<v1::GetHubTokenResponse> {
    JobOfPart job;
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(job, FindJobOfPart(db, each));
      return absl::OkStatus();
    }));
    v1::GetHubTokenResponse response;
    SFT_ASSIGN_OR_RETURN(*response.mutable_token(), hub_.TokenOf(job.project));
    return response;
  });
}

absl::StatusOr<v1::AskJudgeResponse> WorkerService::AskJudge(CallContext& call,
                                                             const v1::AskJudgeRequest& request) {
  return Answer(call, request, [&](const auto& each) -> absl::StatusOr<v1::AskJudgeResponse> {
    JobOfPart job;
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(job, FindJobOfPart(db, each));
      return absl::OkStatus();
    }));
    return judges_.Ask(job.id, job.project, each, [&] { return call.Gone(); });
  });
}

absl::Status WorkerService::FetchModelFile(CallContext& call,
                                           const v1::FetchModelFileRequest& request,
                                           Sink<v1::FetchModelFileResponse>& sink) {
  if (!call.incarnation().empty()) {
    SFT_RETURN_IF_ERROR(registry_.CheckIncarnation(request.node(), call.incarnation()));
  }
  return copies_.Send(
      request, [&](const v1::FetchModelFileResponse& part) { return sink.Write(part); },
      [&] { return sink.Gone(); });
}

absl::StatusOr<v1::SendFileResponse> WorkerService::SendFile(CallContext& call,
                                                             Source<v1::SendFileRequest>& source) {
  const Principal& caller = call.caller();
  const std::string node = caller.kind == Principal::Kind::kNode ? caller.name : "";
  v1::SendFileRequest chunk;
  std::string request;
  absl::Status status = absl::OkStatus();
  while (status.ok() && source.Read(chunk)) {
    // Later chunks need not repeat whose they are.
    if (!chunk.request().empty()) request = chunk.request();
    chunk.set_request(request);
    status = relay_.Push(std::move(chunk), node);
    chunk.Clear();
  }
  if (absl::IsInvalidArgument(status)) registry_.refusals().Count(caller.Title(), status);
  if (!absl::IsNotFound(status)) relay_.End(request);
  SFT_RETURN_IF_ERROR(status);
  SFT_RETURN_IF_ERROR(source.status());
  return v1::SendFileResponse();
}

}  // namespace sft::server
