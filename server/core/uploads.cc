#include "server/core/uploads.h"

#include "server/blob/dataset_check.h"
#include "server/store/files.h"

namespace sft::server {

absl::Status UploadSession::Start(const v1::UploadBlobRequest& message) {
  started_ = true;
  first_ = message;
  first_.clear_data();
  const bool checkpoint = message.purpose() == v1::UploadBlobRequest::CHECKPOINT;
  auto upload = (checkpoint ? checkpoints_ : blobs_)
                    .Begin(message.sha256(), message.size(), message.offset());
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
  // The row of `datasets` is stored before the blob is complete: who finds the blob finds it too.
  const auto check = [&](const std::string& path) -> absl::Status {
    if (!is_dataset) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(const DatasetCheck found, CheckDataset(path));
    rows = found.rows;
    const DatasetRecord dataset{first_.sha256(), first_.size(),
                                found.rows,      first_.display_name(),
                                owner_,          UnixMicros(clock_.Wall()),
                                found.odd_rows,  found.first_odd_row,
                                found.first_odd};
    return store_.Write([&](Database& db) { return store::PutDataset(db, dataset); });
  };
  if (!complete_) {
    SFT_RETURN_IF_ERROR(upload_->Finish(check));
  } else if (is_dataset) {
    // It may have come as something else before.
    SFT_ASSIGN_OR_RETURN(const std::string path, blobs_.PathOf(first_.sha256()));
    SFT_RETURN_IF_ERROR(check(path));
  }
  v1::UploadBlobResponse response;
  response.mutable_blob()->set_sha256(first_.sha256());
  response.mutable_blob()->set_size(first_.size());
  response.set_rows(rows);
  return response;
}

}  // namespace sft::server
