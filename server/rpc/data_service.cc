#include "server/rpc/data_service.h"

#include <optional>

#include "common/rpc/status.h"
#include "server/core/uploads.h"
#include "server/rpc/principal.h"

namespace sft::server {
namespace {

// Who sends it, of a caller that may: users send data sets, nodes what attempts on them deliver. On
// an open server everybody may be both.
template <typename Request>
absl::StatusOr<Sender> SenderOf(const grpc::ServerContext& context, Store& store,
                                const Request& request) {
  const auto purpose = request.purpose();
  const Principal& caller = CallerOf(context);
  const bool is_node = caller.kind == Principal::Kind::kNode;
  Sender sender{PrincipalOf(context), ProjectOf(context)};
  SFT_RETURN_IF_ERROR(sender.KeyOf(purpose).status());
  if (purpose == v1::UploadBlobRequest::DATASET) {
    if (is_node) return InvalidArgument("purpose: a node uploads no data sets");
    return sender;
  }
  if (!is_node && !caller.local) {
    return InvalidArgument("purpose: a user uploads data sets only");
  }
  sender.node = is_node ? caller.name : request.node();
  sender.attempt_uid = request.attempt_uid();
  if (is_node || !sender.attempt_uid.empty()) {
    SFT_RETURN_IF_ERROR(CheckDelivery(store, sender.node, sender.attempt_uid));
  }
  return sender;
}

}  // namespace

grpc::Status DataServiceImpl::StatBlob(grpc::ServerContext* context,
                                       const v1::StatBlobRequest* request,
                                       v1::StatBlobResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  const bool checkpoint = request->purpose() == v1::UploadBlobRequest::CHECKPOINT;
  const absl::StatusOr<Sender> sender = SenderOf(*context, store_, *request);
  if (!sender.ok()) return rpc::ToGrpc(sender.status());
  const absl::StatusOr<BlobStore::Stat> stat = FindUpload(
      checkpoint ? checkpoints_ : blobs_, store_, *sender, request->purpose(), request->sha256());
  if (!stat.ok()) return rpc::ToGrpc(stat.status());
  response->set_complete(stat->complete);
  response->set_received(stat->received);
  return grpc::Status::OK;
}

grpc::Status DataServiceImpl::UploadBlob(grpc::ServerContext* context,
                                         grpc::ServerReader<v1::UploadBlobRequest>* reader,
                                         v1::UploadBlobResponse* response) {
  if (const auto status = Admit(*context); !status.ok()) return status;
  std::optional<UploadSession> session;
  v1::UploadBlobRequest message;
  const auto read = [&] {
    const ReadDeadlines::Wait waits(deadlines_, *context);
    return reader->Read(&message);
  };
  while (read()) {
    if (const auto status = AdmitStill(*context); !status.ok()) return status;
    if (!session.has_value()) {
      if (const auto status = Admit(*context, message); !status.ok()) return status;
      const absl::StatusOr<Sender> sender = SenderOf(*context, store_, message);
      if (!sender.ok()) return rpc::ToGrpc(sender.status());
      session.emplace(blobs_, checkpoints_, store_, clock_, *sender, limits_, deliveries_);
    }
    const absl::Status taken = session->Take(message);
    if (!taken.ok()) return rpc::ToGrpc(taken);
  }
  // A stream that broke ends the reads too: what came is kept for a resume.
  if (context->IsCancelled()) return grpc::Status::CANCELLED;
  if (!session.has_value()) {
    return rpc::ToGrpc(InvalidArgument("an upload without a first message"));
  }
  absl::StatusOr<v1::UploadBlobResponse> finished = session->Finish();
  if (!finished.ok()) return rpc::ToGrpc(finished.status());
  *response = *std::move(finished);
  return grpc::Status::OK;
}

grpc::Status DataServiceImpl::DownloadBlob(grpc::ServerContext* context,
                                           const v1::DownloadBlobRequest* request,
                                           grpc::ServerWriter<v1::DownloadChunk>* writer) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  if (const auto status = AdmitBlob(*context, request->sha256()); !status.ok()) return status;
  return rpc::ToGrpc(artifacts_.DownloadBlob(
      request->sha256(), request->offset(),
      [&](const v1::DownloadChunk& chunk) { return writer->Write(chunk); }));
}

grpc::Status DataServiceImpl::GetArtifact(grpc::ServerContext* context,
                                          const v1::GetArtifactRequest* request,
                                          v1::Artifact* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  absl::StatusOr<v1::Artifact> artifact = artifacts_.Get(request->name());
  if (!artifact.ok()) return rpc::ToGrpc(artifact.status());
  *response = *std::move(artifact);
  return grpc::Status::OK;
}

grpc::Status DataServiceImpl::DownloadArtifactFile(grpc::ServerContext* context,
                                                   const v1::DownloadArtifactFileRequest* request,
                                                   grpc::ServerWriter<v1::DownloadChunk>* writer) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  return rpc::ToGrpc(artifacts_.DownloadFile(
      *request, [&](const v1::DownloadChunk& chunk) { return writer->Write(chunk); }));
}

}  // namespace sft::server
