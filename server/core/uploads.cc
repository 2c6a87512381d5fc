#include "server/core/uploads.h"

#include <algorithm>

#include "common/io/dataset_check.h"
#include "server/store/files.h"
#include "server/store/storage.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

// Bytes of a data set between two looks at the disk.
constexpr int64_t kLookEvery = int64_t{32} << 20;

absl::StatusOr<bool> Owns(Store& store, const std::string& project, const std::string& sha256) {
  bool owns = false;
  SFT_RETURN_IF_ERROR(store.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(owns, store::OwnsDataset(db, project, sha256));
    return absl::OkStatus();
  }));
  return owns;
}

}  // namespace

absl::StatusOr<BlobStore::Stat> FindUpload(BlobStore& blobs, Store& store,
                                           const std::string& project, const std::string& sha256) {
  SFT_ASSIGN_OR_RETURN(BlobStore::Stat stat, blobs.Find(sha256, project));
  if (project.empty() || !stat.complete) return stat;
  SFT_ASSIGN_OR_RETURN(stat.complete, Owns(store, project, sha256));
  return stat;
}

absl::Status UploadSession::Start(const v1::UploadBlobRequest& message) {
  started_ = true;
  first_ = message;
  first_.clear_data();
  SFT_RETURN_IF_ERROR(CheckLimits());
  const bool checkpoint = message.purpose() == v1::UploadBlobRequest::CHECKPOINT;
  std::string parts_of;
  bool again = false;
  if (message.purpose() == v1::UploadBlobRequest::DATASET) {
    SFT_ASSIGN_OR_RETURN(const bool owns, Owns(store_, project_, message.sha256()));
    parts_of = project_;
    again = !owns;
  }
  auto upload = (checkpoint ? checkpoints_ : blobs_)
                    .Begin(message.sha256(), message.size(), message.offset(), parts_of, again);
  if (absl::IsAlreadyExists(upload.status())) {
    complete_ = true;
    return absl::OkStatus();
  }
  if (!upload.ok()) return upload.status();
  upload_ = *std::move(upload);
  return absl::OkStatus();
}

// Artifacts and checkpoints are of jobs that run: what they make is kept as long as it can be.
absl::Status UploadSession::CheckLimits() {
  if (!is_dataset() || limits_ == nullptr) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const BlobStore::Stat stat, blobs_.Find(first_.sha256(), project_));
  SFT_ASSIGN_OR_RETURN(const auto parts, blobs_.Unfinished(project_));
  SFT_ASSIGN_OR_RETURN(
      reserved_,
      limits_->Reserve(project_, first_.sha256(), first_.size(),
                       stat.complete ? 0 : std::max<int64_t>(0, first_.size() - stat.received),
                       parts));
  return absl::OkStatus();
}

absl::Status UploadSession::Take(const v1::UploadBlobRequest& message) {
  if (!started_) SFT_RETURN_IF_ERROR(Start(message));
  if (complete_ || message.data().empty()) return absl::OkStatus();
  unchecked_ += static_cast<int64_t>(message.data().size());
  if (is_dataset() && limits_ != nullptr && unchecked_ > kLookEvery) {
    unchecked_ = 0;
    SFT_RETURN_IF_ERROR(limits_->CheckGoingOn());
  }
  return upload_->Append(message.data());
}

absl::StatusOr<v1::UploadBlobResponse> UploadSession::Finish() {
  if (!started_) return InvalidArgument("an upload without a first message");
  int64_t rows = 0;
  // The row of `datasets` is stored before the blob is complete: who finds the blob finds it too.
  const auto check = [&](const std::string& path) -> absl::Status {
    if (!is_dataset()) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(const io::DatasetCheck found, io::CheckDataset(path));
    rows = found.rows;
    const DatasetRecord dataset{first_.sha256(), first_.size(),
                                found.rows,      first_.display_name(),
                                owner_,          UnixMicros(clock_.Wall()),
                                found.odd_rows,  found.first_odd_row,
                                found.first_odd};
    // A complete blob may be about to be removed.
    const MutexLock lock(blobs_.gate());
    if (complete_) SFT_RETURN_IF_ERROR(blobs_.PathOf(first_.sha256()).status());
    return store_.Write([&](Database& db) -> absl::Status {
      if (limits_ != nullptr) {
        SFT_RETURN_IF_ERROR(limits_->CheckTaken(db, project_, dataset.sha256, dataset.size));
      }
      SFT_RETURN_IF_ERROR(store::PutDataset(db, dataset));
      return store::PutDatasetOwner(db, dataset.sha256, project_, owner_, dataset.display_name,
                                    dataset.created_us);
    });
  };
  if (!complete_) {
    SFT_RETURN_IF_ERROR(upload_->Finish(check));
  } else if (is_dataset()) {
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
