#include "server/rpc/data_service.h"

#include "common/rpc/status.h"
#include "server/core/uploads.h"
#include "server/rpc/principal.h"

namespace sft::server {

grpc::Status DataServiceImpl::StatBlob(grpc::ServerContext* context,
                                       const v1::StatBlobRequest* request,
                                       v1::StatBlobResponse* response) {
  if (const auto status = CheckPrincipal(*context); !status.ok()) return status;
  const bool checkpoint = request->purpose() == v1::UploadBlobRequest::CHECKPOINT;
  const absl::StatusOr<BlobStore::Stat> stat =
      (checkpoint ? checkpoints_ : blobs_).Find(request->sha256());
  if (!stat.ok()) return rpc::ToGrpc(stat.status());
  response->set_complete(stat->complete);
  response->set_received(stat->received);
  return grpc::Status::OK;
}

grpc::Status DataServiceImpl::UploadBlob(grpc::ServerContext* context,
                                         grpc::ServerReader<v1::UploadBlobRequest>* reader,
                                         v1::UploadBlobResponse* response) {
  if (const auto status = CheckPrincipal(*context); !status.ok()) return status;
  UploadSession session(blobs_, checkpoints_, store_, clock_, PrincipalOf(*context));
  v1::UploadBlobRequest message;
  while (reader->Read(&message)) {
    const absl::Status taken = session.Take(message);
    if (!taken.ok()) return rpc::ToGrpc(taken);
  }
  // A stream that broke ends the reads too: what came is kept for a resume.
  if (context->IsCancelled()) return grpc::Status::CANCELLED;
  absl::StatusOr<v1::UploadBlobResponse> finished = session.Finish();
  if (!finished.ok()) return rpc::ToGrpc(finished.status());
  *response = *std::move(finished);
  return grpc::Status::OK;
}

grpc::Status DataServiceImpl::DownloadBlob(grpc::ServerContext* context,
                                           const v1::DownloadBlobRequest* request,
                                           grpc::ServerWriter<v1::DownloadChunk>* writer) {
  if (const auto status = CheckPrincipal(*context); !status.ok()) return status;
  return rpc::ToGrpc(artifacts_.DownloadBlob(
      request->sha256(), request->offset(),
      [&](const v1::DownloadChunk& chunk) { return writer->Write(chunk); }));
}

grpc::Status DataServiceImpl::GetArtifact(grpc::ServerContext* context,
                                          const v1::GetArtifactRequest* request,
                                          v1::Artifact* response) {
  if (const auto status = CheckPrincipal(*context); !status.ok()) return status;
  absl::StatusOr<v1::Artifact> artifact = artifacts_.Get(request->name());
  if (!artifact.ok()) return rpc::ToGrpc(artifact.status());
  *response = *std::move(artifact);
  return grpc::Status::OK;
}

grpc::Status DataServiceImpl::DownloadArtifactFile(grpc::ServerContext* context,
                                                   const v1::DownloadArtifactFileRequest* request,
                                                   grpc::ServerWriter<v1::DownloadChunk>* writer) {
  if (const auto status = CheckPrincipal(*context); !status.ok()) return status;
  return rpc::ToGrpc(artifacts_.DownloadFile(
      *request, [&](const v1::DownloadChunk& chunk) { return writer->Write(chunk); }));
}

}  // namespace sft::server
