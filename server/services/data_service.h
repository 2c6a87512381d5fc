#pragma once

#include "common/base/clock.h"
#include "server/blob/blob_store.h"
#include "server/core/intake_limits.h"
#include "server/door/methods.h"
#include "server/fleet/delivery_limits.h"
#include "server/store/store.h"
#include "server/stored/artifacts.h"
#include "sft/v1/data_service.pb.h"

namespace sft::server {

// DataService: files to and from the server. One thread a stream; the transport's flow control is
// the bound.
class DataService final {
 public:
  DataService(BlobStore& blobs, BlobStore& checkpoints, Store& store, Clock& clock,
              Artifacts& artifacts, IntakeLimits* limits = nullptr,
              DeliveryLimits* deliveries = nullptr)
      : blobs_(blobs),
        checkpoints_(checkpoints),
        store_(store),
        clock_(clock),
        artifacts_(artifacts),
        limits_(limits),
        deliveries_(deliveries) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::StatusOr<v1::StatBlobResponse> StatBlob(CallContext& call,
                                                const v1::StatBlobRequest& request);
  absl::StatusOr<v1::UploadBlobResponse> UploadBlob(CallContext& call,
                                                    Source<v1::UploadBlobRequest>& source);
  absl::Status DownloadBlob(CallContext& call, const v1::DownloadBlobRequest& request,
                            Sink<v1::DownloadChunk>& sink);
  absl::StatusOr<v1::Artifact> GetArtifact(CallContext& call,
                                           const v1::GetArtifactRequest& request);
  absl::Status DownloadArtifactFile(CallContext& call,
                                    const v1::DownloadArtifactFileRequest& request,
                                    Sink<v1::DownloadChunk>& sink);

 private:
  BlobStore& blobs_;
  BlobStore& checkpoints_;
  Store& store_;
  Clock& clock_;
  Artifacts& artifacts_;
  IntakeLimits* const limits_;
  DeliveryLimits* const deliveries_;
};

}  // namespace sft::server
