#pragma once

#include "server/core/artifacts.h"
#include "server/core/checkpoints.h"
#include "server/core/file_relay.h"
#include "server/core/ingest.h"
#include "server/core/worker_registry.h"
#include "server/rpc/sessions.h"
#include "sft/v1/worker_service.grpc.pb.h"

namespace sft::server {

// WorkerService. The standing streams have one thread together (sessions.h), because a stream a
// node must not cost a thread a node; the rest are plain calls.
class WorkerServiceImpl final : public Sessions::Service {
 public:
  WorkerServiceImpl(WorkerRegistry& registry, Ingest& ingest, Artifacts& artifacts,
                    Checkpoints& checkpoints, FileRelay& relay)
      : refusals_(registry.refusals()),
        sessions_(*this, registry),
        registry_(registry),
        ingest_(ingest),
        artifacts_(artifacts),
        checkpoints_(checkpoints),
        relay_(relay) {}

  Sessions& sessions() { return sessions_; }
  grpc::Status AppendLog(grpc::ServerContext* context, const v1::AppendLogRequest* request,
                         v1::AppendLogResponse* response) override;
  grpc::Status AppendEvents(grpc::ServerContext* context, const v1::AppendEventsRequest* request,
                            v1::AppendEventsResponse* response) override;
  grpc::Status CommitArtifact(grpc::ServerContext* context,
                              const v1::CommitArtifactRequest* request,
                              v1::Artifact* response) override;
  grpc::Status CommitCheckpoint(grpc::ServerContext* context,
                                const v1::CommitCheckpointRequest* request,
                                v1::CommitCheckpointResponse* response) override;
  grpc::Status SendFile(grpc::ServerContext* context,
                        grpc::ServerReader<v1::SendFileRequest>* reader,
                        v1::SendFileResponse* response) override;

 private:
  // Whether the caller is the life of a worker that is registered as `node`; one of an earlier
  // version does not say which it is.
  grpc::Status CheckLife(const grpc::ServerContext& context, const std::string& node) const;

  // The answer of a node's call, counted where it is a refusal.
  template <typename Response>
  grpc::Status Answer(const std::string& node, absl::StatusOr<Response> answer, Response* response);

  NodeRefusals& refusals_;
  Sessions sessions_;
  const WorkerRegistry& registry_;
  Ingest& ingest_;
  Artifacts& artifacts_;
  Checkpoints& checkpoints_;
  FileRelay& relay_;
};

}  // namespace sft::server
