#include "server/services/worker_service.h"

namespace sft::server {

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
