#include "server/rpc/worker_service.h"

#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "server/rpc/principal.h"

namespace sft::server {

grpc::Status WorkerServiceImpl::CheckLife(const grpc::ServerContext& context,
                                          const std::string& node) const {
  const auto& metadata = context.client_metadata();
  const auto said = metadata.find(rpc::kIncarnationKey);
  if (said == metadata.end()) return grpc::Status::OK;
  return rpc::ToGrpc(
      registry_.CheckIncarnation(node, std::string(said->second.data(), said->second.size())));
}

template <typename Response>
grpc::Status WorkerServiceImpl::Answer(const std::string& node, absl::StatusOr<Response> answer,
                                       Response* response) {
  if (!answer.ok()) {
    if (absl::IsInvalidArgument(answer.status())) refusals_.Count(node, answer.status());
    return rpc::ToGrpc(answer.status());
  }
  *response = *std::move(answer);
  return grpc::Status::OK;
}

grpc::Status WorkerServiceImpl::AppendLog(grpc::ServerContext* context,
                                          const v1::AppendLogRequest* request,
                                          v1::AppendLogResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  if (const auto status = CheckLife(*context, request->node()); !status.ok()) return status;
  return Answer(request->node(), ingest_.AppendLog(*request), response);
}

grpc::Status WorkerServiceImpl::AppendEvents(grpc::ServerContext* context,
                                             const v1::AppendEventsRequest* request,
                                             v1::AppendEventsResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  if (const auto status = CheckLife(*context, request->node()); !status.ok()) return status;
  return Answer(request->node(), ingest_.AppendEvents(*request), response);
}

grpc::Status WorkerServiceImpl::CommitArtifact(grpc::ServerContext* context,
                                               const v1::CommitArtifactRequest* request,
                                               v1::Artifact* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  if (const auto status = CheckLife(*context, request->node()); !status.ok()) return status;
  return Answer(request->node(), artifacts_.Commit(*request), response);
}

grpc::Status WorkerServiceImpl::CommitCheckpoint(grpc::ServerContext* context,
                                                 const v1::CommitCheckpointRequest* request,
                                                 v1::CommitCheckpointResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  if (const auto status = CheckLife(*context, request->node()); !status.ok()) return status;
  return Answer(request->node(), checkpoints_.Commit(*request), response);
}

grpc::Status WorkerServiceImpl::SendFile(grpc::ServerContext* context,
                                         grpc::ServerReader<v1::SendFileRequest>* reader,
                                         v1::SendFileResponse* response) {
  if (const auto status = Admit(*context); !status.ok()) return status;
  response->Clear();
  const Principal& caller = CallerOf(*context);
  const std::string node = caller.kind == Principal::Kind::kNode ? caller.name : "";
  v1::SendFileRequest chunk;
  std::string request;
  absl::Status status = absl::OkStatus();
  while (status.ok() && reader->Read(&chunk)) {
    // Later chunks need not repeat whose they are.
    if (!chunk.request().empty()) request = chunk.request();
    chunk.set_request(request);
    status = relay_.Push(std::move(chunk), node);
    chunk.Clear();
  }
  if (absl::IsInvalidArgument(status)) refusals_.Count(CallerOf(*context).Title(), status);
  if (!absl::IsNotFound(status)) relay_.End(request);
  return rpc::ToGrpc(status);
}

}  // namespace sft::server
