#pragma once

#include "server/door/methods.h"
#include "server/fleet/file_relay.h"
#include "server/fleet/hub_models.h"
#include "server/fleet/model_copies.h"
#include "server/fleet/worker_registry.h"
#include "server/gangs/ingest.h"
#include "server/jobs/judges.h"
#include "server/stored/artifacts.h"
#include "server/stored/checkpoints.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::server {

// WorkerService: what nodes send of their attempts. The standing streams, one a node, are served by
// Sessions.
class WorkerService final {
 public:
  WorkerService(WorkerRegistry& registry, Ingest& ingest, Artifacts& artifacts,
                Checkpoints& checkpoints, FileRelay& relay, Store& store, HubModels& hub,
                Judges& judges, ModelCopies& copies)
      : registry_(registry),
        ingest_(ingest),
        artifacts_(artifacts),
        checkpoints_(checkpoints),
        relay_(relay),
        store_(store),
        hub_(hub),
        judges_(judges),
        copies_(copies) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::StatusOr<v1::AppendLogResponse> AppendLog(CallContext& call,
                                                  const v1::AppendLogRequest& request);
  absl::StatusOr<v1::AppendEventsResponse> AppendEvents(CallContext& call,
                                                        const v1::AppendEventsRequest& request);
  absl::StatusOr<v1::Artifact> CommitArtifact(CallContext& call,
                                              const v1::CommitArtifactRequest& request);
  absl::StatusOr<v1::CommitCheckpointResponse> CommitCheckpoint(
      CallContext& call, const v1::CommitCheckpointRequest& request);
  absl::StatusOr<v1::GetHubTokenResponse> GetHubToken(CallContext& call,
                                                      const v1::GetHubTokenRequest& request);
  absl::StatusOr<v1::AskJudgeResponse> AskJudge(CallContext& call,
                                                const v1::AskJudgeRequest& request);
  absl::Status FetchModelFile(CallContext& call, const v1::FetchModelFileRequest& request,
                              Sink<v1::FetchModelFileResponse>& sink);
  absl::StatusOr<v1::SendFileResponse> SendFile(CallContext& call,
                                                Source<v1::SendFileRequest>& source);

 private:
  // What `take` makes of a node's request, if the caller is the life of a worker that is registered
  // as that node; one of an earlier version does not say which it is. A refusal is counted.
  template <typename Request, typename Take>
  auto Answer(const CallContext& call, const Request& request, const Take& take)
      -> decltype(take(request));

  WorkerRegistry& registry_;
  Ingest& ingest_;
  Artifacts& artifacts_;
  Checkpoints& checkpoints_;
  FileRelay& relay_;
  Store& store_;
  HubModels& hub_;
  Judges& judges_;
  ModelCopies& copies_;
};

}  // namespace sft::server
