#include "server/services/data_service.h"

#include <optional>

#include "server/stored/uploads.h"

namespace sft::server {
namespace {

// Who sends it, of a caller that may: users send data sets, nodes what attempts on them deliver. On
// an open server everybody may be both.
template <typename Request>
absl::StatusOr<Sender> SenderOf(const CallContext& call, Store& store, const Request& request) {
  const auto purpose = request.purpose();
  const Principal& caller = call.caller();
  const bool is_node = caller.kind == Principal::Kind::kNode;
  Sender sender{caller.Title(), call.project()};
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

void DataService::AddTo(Methods& methods) {
  using enum Caller;
  using enum Place;
  constexpr Role kViewer = Role::kViewer, kSubmitter = Role::kSubmitter;
  using Self = DataService;
  methods.Unary({"DataService.StatBlob", kEither, kSubmitter, kProject}, this, &Self::StatBlob);
  methods.ClientStream({"DataService.UploadBlob", kEither, kSubmitter, kProject, Audit::kChange},
                       this, &Self::UploadBlob);
  methods.ServerStream({"DataService.DownloadBlob", kEither, kViewer, kOwn}, this,
                       &Self::DownloadBlob);
  methods.Unary({"DataService.GetArtifact", kUser, kViewer, kNamed}, this, &Self::GetArtifact);
  methods.ServerStream({"DataService.DownloadArtifactFile", kUser, kViewer, kNamed}, this,
                       &Self::DownloadArtifactFile);
}

absl::StatusOr<v1::StatBlobResponse> DataService::StatBlob(CallContext& call,
                                                           const v1::StatBlobRequest& request) {
  const bool checkpoint = request.purpose() == v1::UploadBlobRequest::CHECKPOINT;
  SFT_ASSIGN_OR_RETURN(const Sender sender, SenderOf(call, store_, request));
  SFT_ASSIGN_OR_RETURN(const BlobStore::Stat stat,
                       FindUpload(checkpoint ? checkpoints_ : blobs_, store_, sender,
                                  request.purpose(), request.sha256()));
  v1::StatBlobResponse response;
  response.set_complete(stat.complete);
  response.set_received(stat.received);
  return response;
}

absl::StatusOr<v1::UploadBlobResponse> DataService::UploadBlob(
    CallContext& call, Source<v1::UploadBlobRequest>& source) {
  std::optional<UploadSession> session;
  v1::UploadBlobRequest message;
  while (source.Read(message)) {
    if (!session.has_value()) {
      SFT_ASSIGN_OR_RETURN(const Sender sender, SenderOf(call, store_, message));
      session.emplace(blobs_, checkpoints_, store_, clock_, sender, limits_, deliveries_);
    }
    SFT_RETURN_IF_ERROR(session->Take(message));
  }
  // Of a stream that broke, what came is kept for a resume.
  SFT_RETURN_IF_ERROR(source.status());
  if (!session.has_value()) return InvalidArgument("an upload without a first message");
  return session->Finish(call.actor());
}

absl::Status DataService::DownloadBlob(CallContext& call, const v1::DownloadBlobRequest& request,
                                       Sink<v1::DownloadChunk>& sink) {
  SFT_RETURN_IF_ERROR(call.AdmitBlob(request.sha256()));
  return artifacts_.DownloadBlob(request.sha256(), request.offset(),
                                 [&](const v1::DownloadChunk& chunk) { return sink.Write(chunk); });
}

absl::StatusOr<v1::Artifact> DataService::GetArtifact(CallContext&,
                                                      const v1::GetArtifactRequest& request) {
  return artifacts_.Get(request.name());
}

absl::Status DataService::DownloadArtifactFile(CallContext&,
                                               const v1::DownloadArtifactFileRequest& request,
                                               Sink<v1::DownloadChunk>& sink) {
  return artifacts_.DownloadFile(request,
                                 [&](const v1::DownloadChunk& chunk) { return sink.Write(chunk); });
}

}  // namespace sft::server
