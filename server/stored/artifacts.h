#pragma once

#include <functional>
#include <map>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/blob/blob_store.h"
#include "server/core/change_hub.h"
#include "server/fleet/file_relay.h"
#include "server/store/store.h"
#include "sft/v1/artifact.pb.h"
#include "sft/v1/data_service.pb.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::server {

// Artifacts: the results that jobs deliver. Thread-safe.
class Artifacts {
 public:
  Artifacts(Store& store, Clock& clock, BlobStore& blobs, BlobStore& checkpoints, FileRelay& relay,
            ChangeHub& hub)
      : store_(store),
        clock_(clock),
        blobs_(blobs),
        checkpoints_(checkpoints),
        relay_(relay),
        hub_(hub) {}

  // Registers a delivery. FAILED_PRECONDITION for another epoch; ABORTED when a file of an adapter
  // was not uploaded by this node for this attempt; INVALID_ARGUMENT as CheckArtifact.
  absl::StatusOr<v1::Artifact> Commit(const v1::CommitArtifactRequest& request);
  // `name` is "artifacts/{id}", or a job's name for its newest artifact.
  absl::StatusOr<v1::Artifact> Get(const std::string& name);

  // Receives chunks; returns false when the reader is gone.
  using Sink = std::function<bool(const v1::DownloadChunk&)>;
  // Downloads a blob of a data set, an artifact or a checkpoint.
  absl::Status DownloadBlob(const std::string& sha256, int64_t offset, const Sink& sink);
  absl::Status DownloadFile(const v1::DownloadArtifactFileRequest& request, const Sink& sink);

 private:
  absl::Status Relay(const v1::Artifact& artifact, const v1::ArtifactFile& file, int64_t offset,
                     const Sink& sink);

  Store& store_;
  Clock& clock_;
  BlobStore& blobs_;
  BlobStore& checkpoints_;
  FileRelay& relay_;
  ChangeHub& hub_;
  // When the last use was last stored, for the newest few artifacts.
  static constexpr std::chrono::seconds kNoteUse{3600};
  static constexpr size_t kMaxNoted = 1000;
  Mutex mutex_;
  std::map<std::string, int64_t> noted_us_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
