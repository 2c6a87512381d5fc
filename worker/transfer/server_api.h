#pragma once

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "sft/v1/data_service.pb.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/base/rank_user.h"

namespace sft::worker {

// Called between chunks of a long transfer; true ends it with ABORTED.
using StopCheck = std::function<bool()>;

// A file to upload as a blob.
struct BlobFile {
  std::string path;
  std::string sha256;
  int64_t size = 0;
  std::string display_name;
  std::optional<RankUser> reader = std::nullopt;  // the rights with which it is read
  bool is_checkpoint = false;                     // stored where it can be deleted again
  std::string attempt_uid, node;                  // the sender of the delivery
};

// The server's calls besides the session stream. Every call has a deadline. Errors: UNAVAILABLE and
// DEADLINE_EXCEEDED of the transport, otherwise the server's status. Thread-safe.
class ServerApi {
 public:
  virtual ~ServerApi() = default;

  // Returns the server's offset afterwards.
  virtual absl::StatusOr<int64_t> AppendLog(const v1::AppendLogRequest& request) = 0;
  virtual absl::StatusOr<int64_t> AppendEvents(const v1::AppendEventsRequest& request) = 0;
  // Uploads the part of an artifact's or a checkpoint's file that the server lacks.
  virtual absl::Status UploadArtifact(const BlobFile& file, const StopCheck& stop) = 0;
  // Passes the blob's bytes from `offset` on to `sink`, in order. `stop` is also called while no
  // data arrives, from another thread.
  virtual absl::Status Download(const std::string& sha256, int64_t offset,
                                const std::function<absl::Status(std::string_view)>& sink,
                                const StopCheck& stop) = 0;
  virtual absl::Status CommitCheckpoint(const v1::CommitCheckpointRequest& request) = 0;
  virtual absl::Status CommitArtifact(const v1::CommitArtifactRequest& request) = 0;
  // The token of the attempt's project for the model hub; empty: it has none.
  virtual absl::StatusOr<std::string> HubToken(const v1::GetHubTokenRequest& request) = 0;
  // Waits for a judge, as long as the server does; ABORTED where `stop` said so, from another
  // thread.
  virtual absl::StatusOr<v1::AskJudgeResponse> AskJudge(const v1::AskJudgeRequest& request,
                                                        const StopCheck& stop) = 0;
  // A file that another node sends through the server, as it comes.
  class ModelFile {
   public:
    virtual ~ModelFile() = default;
    // Who sends it.
    virtual const std::string& node() const = 0;
    // The next bytes; none at the end. ABORTED where `stop` said so.
    virtual absl::StatusOr<std::string> Next() = 0;
  };
  virtual absl::StatusOr<std::unique_ptr<ModelFile>> FetchModelFile(
      const v1::FetchModelFileRequest& request, const StopCheck& stop) = 0;
  // Answers the server's FetchFile with the file, or with `error` if that is not empty.
  virtual absl::Status SendFile(const v1::FetchFile& request, const std::string& path,
                                const std::string& error) = 0;
  // Answers the server's Ask with the lines that `next` gives until it gives none; an error of it
  // ends the answer and says why. Returns early when nobody waits for the answer any more.
  using NextLine = std::function<absl::StatusOr<std::string>()>;
  virtual absl::Status SendLines(const std::string& request, const NextLine& next) = 0;
};

// The API over gRPC, as the incarnation `incarnation` of this worker; `channels` is called at each
// call. SendFile reads with the rights of `reader`.
std::unique_ptr<ServerApi> MakeServerApi(std::function<std::shared_ptr<grpc::Channel>()> channels,
                                         const std::string& incarnation,
                                         std::optional<RankUser> reader = std::nullopt);

}  // namespace sft::worker
