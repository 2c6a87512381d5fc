#include "server/core/uploads.h"

#include "server/blob/dataset_check.h"
#include "server/store/files.h"

namespace sft::server {

absl::Status UploadSession::Start(const v1::UploadBlobRequest& message) {
  started_ = true;
  first_ = message;
  first_.clear_data();
  auto upload = blobs_.Begin(message.sha256(), message.size(), message.offset());
  if (absl::IsAlreadyExists(upload.status())) {
    complete_ = true;
    return absl::OkStatus();
  }
  if (!upload.ok()) return upload.status();
  upload_ = *std::move(upload);
  return absl::OkStatus();
}

absl::Status UploadSession::Take(const v1::UploadBlobRequest& message) {
  if (!started_) SFT_RETURN_IF_ERROR(Start(message));
  if (complete_ || message.data().empty()) return absl::OkStatus();
  return upload_->Append(message.data());
}

absl::StatusOr<v1::UploadBlobResponse> UploadSession::Finish() {
  if (!started_) return InvalidArgument("an upload without a first message");
  const bool is_dataset = first_.purpose() == v1::UploadBlobRequest::DATASET;
  int64_t rows = 0;
  const auto check = [&](const std::string& path) -> absl::Status {
    if (!is_dataset) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(rows, CheckDataset(path));
    return absl::OkStatus();
  };
  if (!complete_) {
    const absl::Status finished = upload_->Finish(check);
    if (!finished.ok()) {
      return first_.display_name().empty() ? finished : Annotate(finished, first_.display_name());
    }
  } else if (is_dataset) {
    // It may have come as something else, or the row was not stored before a crash.
    SFT_ASSIGN_OR_RETURN(const std::string path, blobs_.PathOf(first_.sha256()));
    SFT_RETURN_IF_ERROR(Annotate(check(path), first_.display_name()));
  }
  if (is_dataset) {
    const DatasetRecord dataset{first_.sha256(), first_.size(), rows, first_.display_name(), owner_,
                                UnixMicros(clock_.Wall())};
    SFT_RETURN_IF_ERROR(
        store_.Write([&](Database& db) { return store::PutDataset(db, dataset); }));
  }
  v1::UploadBlobResponse response;
  response.mutable_blob()->set_sha256(first_.sha256());
  response.mutable_blob()->set_size(first_.size());
  response.set_rows(rows);
  return response;
}

}  // namespace sft::server
