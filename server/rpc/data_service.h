#pragma once

#include "common/base/clock.h"
#include "server/blob/blob_store.h"
#include "server/core/artifacts.h"
#include "server/core/delivery_limits.h"
#include "server/core/intake_limits.h"
#include "server/rpc/read_deadlines.h"
#include "server/store/store.h"
#include "sft/v1/data_service.grpc.pb.h"

namespace sft::server {

// DataService: files to and from the server. One thread a stream; gRPC's flow control is the bound.
class DataServiceImpl final : public v1::DataService::Service {
 public:
  // How long an upload may send nothing before it is ended; what came is kept for a resume.
  static constexpr std::chrono::minutes kUploadPatience{2};

  DataServiceImpl(BlobStore& blobs, BlobStore& checkpoints, Store& store, Clock& clock,
                  Artifacts& artifacts, IntakeLimits* limits = nullptr,
                  Nanos upload_patience = kUploadPatience, DeliveryLimits* deliveries = nullptr)
      : blobs_(blobs),
        checkpoints_(checkpoints),
        store_(store),
        clock_(clock),
        artifacts_(artifacts),
        limits_(limits),
        deliveries_(deliveries),
        deadlines_(clock, upload_patience) {}

  grpc::Status StatBlob(grpc::ServerContext* context, const v1::StatBlobRequest* request,
                        v1::StatBlobResponse* response) override;
  grpc::Status UploadBlob(grpc::ServerContext* context,
                          grpc::ServerReader<v1::UploadBlobRequest>* reader,
                          v1::UploadBlobResponse* response) override;
  grpc::Status DownloadBlob(grpc::ServerContext* context, const v1::DownloadBlobRequest* request,
                            grpc::ServerWriter<v1::DownloadChunk>* writer) override;
  grpc::Status GetArtifact(grpc::ServerContext* context, const v1::GetArtifactRequest* request,
                           v1::Artifact* response) override;
  grpc::Status DownloadArtifactFile(grpc::ServerContext* context,
                                    const v1::DownloadArtifactFileRequest* request,
                                    grpc::ServerWriter<v1::DownloadChunk>* writer) override;

 private:
  BlobStore& blobs_;
  BlobStore& checkpoints_;
  Store& store_;
  Clock& clock_;
  Artifacts& artifacts_;
  IntakeLimits* const limits_;
  DeliveryLimits* const deliveries_;
  ReadDeadlines deadlines_;
};

}  // namespace sft::server
