#include "server/stored/uploads.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/plain_text.h"
#include "common/data/dataset_check.h"
#include "server/store/attempts.h"
#include "server/store/files.h"
#include "server/store/storage.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

// Bytes between two checks of the disk.
constexpr int64_t kLookEvery = int64_t{32} << 20;
constexpr int64_t kMaxSize = int64_t{1} << 50;
constexpr size_t kMaxDisplayName = 1000;

absl::StatusOr<bool> Owns(Store& store, const std::string& project, const std::string& sha256) {
  bool owns = false;
  SFT_RETURN_IF_ERROR(store.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(owns, store::OwnsDataset(db, project, sha256));
    return absl::OkStatus();
  }));
  return owns;
}

// Cannot be the name of a project.
std::string DeliveryKey(const std::string& node, const std::string& attempt_uid) {
  return fmt::format("@{}@{}", node, attempt_uid);
}

bool WasDelivered(const BlobStore& blobs, const std::string& sha256, const std::string& node,
                  const std::string& attempt_uid) {
  return blobs.WasBrought(sha256, DeliveryKey(node, attempt_uid)) ||
         blobs.WasBrought(sha256, DeliveryKey(node, "")) ||
         blobs.WasBrought(sha256, DeliveryKey("", ""));
}

// True when this sender has sent all of it.
absl::StatusOr<bool> Has(const BlobStore& blobs, Store& store, const Sender& sender,
                         v1::UploadBlobRequest::Purpose purpose, const std::string& sha256) {
  if (purpose == v1::UploadBlobRequest::DATASET) return Owns(store, sender.project, sha256);
  return WasDelivered(blobs, sha256, sender.node, sender.attempt_uid);
}

}  // namespace

absl::StatusOr<std::string> Sender::KeyOf(v1::UploadBlobRequest::Purpose purpose) const {
  switch (purpose) {
    case v1::UploadBlobRequest::DATASET:
      return project;
    case v1::UploadBlobRequest::ARTIFACT:
    case v1::UploadBlobRequest::CHECKPOINT:
      return DeliveryKey(node, attempt_uid);
    default:
      return InvalidArgument(fmt::format(
          "purpose: {} is no purpose of an upload; DATASET, ARTIFACT and CHECKPOINT are",
          static_cast<int>(purpose)));
  }
}

absl::Status CheckDelivery(Store& store, const std::string& node, const std::string& attempt_uid) {
  return store.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> held, store::HeldMembers(db, node));
    const bool may = attempt_uid.empty()
                         ? !held.empty()
                         : std::any_of(held.begin(), held.end(), [&](const MemberRecord& each) {
                             return each.attempt_uid == attempt_uid;
                           });
    if (may) return absl::OkStatus();
    return FailedPrecondition(
        attempt_uid.empty()
            ? fmt::format("no attempt is on node {}: there is nothing that it could deliver", node)
            : fmt::format("attempt {} is not on node {}", attempt_uid.substr(0, 80), node));
  });
}

absl::Status CheckDelivered(const BlobStore& blobs, const DeliveredFiles& files,
                            const std::string& node, const std::string& attempt_uid) {
  for (const v1::ArtifactFile& file : files) {
    const std::string& sha256 = file.blob().sha256();
    const absl::StatusOr<std::string> path = blobs.PathOf(sha256);
    if (!path.ok() || !WasDelivered(blobs, sha256, node, attempt_uid)) {
      return Aborted(fmt::format("{} is not there: upload it again", file.path()));
    }
    SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(*path));
    if (size != file.blob().size()) {
      return InvalidArgument(
          fmt::format("{} has {} bytes, not {}", file.path(), size, file.blob().size()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<BlobStore::Stat> FindUpload(BlobStore& blobs, Store& store, const Sender& sender,
                                           v1::UploadBlobRequest::Purpose purpose,
                                           const std::string& sha256) {
  SFT_ASSIGN_OR_RETURN(const std::string key, sender.KeyOf(purpose));
  SFT_ASSIGN_OR_RETURN(BlobStore::Stat stat, blobs.Find(sha256, key));
  if (!stat.complete) return stat;
  SFT_ASSIGN_OR_RETURN(stat.complete, Has(blobs, store, sender, purpose, sha256));
  return stat;
}

absl::Status UploadSession::Start(const v1::UploadBlobRequest& message) {
  SFT_ASSIGN_OR_RETURN(key_, sender_.KeyOf(message.purpose()));
  if (message.size() < 0 || message.size() > kMaxSize) {
    return InvalidArgument(
        fmt::format("size: {} is not between 0 and {}, which is more than any "
                    "file of a job has",
                    message.size(), kMaxSize));
  }
  started_ = true;
  first_ = message;
  first_.clear_data();
  first_.set_display_name(Plain(first_.display_name(), kMaxDisplayName));
  if (message.sha256().empty()) return StartUnnamed();
  SFT_RETURN_IF_ERROR(CheckLimits());
  SFT_ASSIGN_OR_RETURN(const bool has,
                       Has(target(), store_, sender_, first_.purpose(), first_.sha256()));
  auto upload =
      target().Begin(message.sha256(), message.size(), message.offset(), key_, /*again=*/!has);
  if (absl::IsAlreadyExists(upload.status())) {
    complete_ = true;
    return absl::OkStatus();
  }
  if (!upload.ok()) return upload.status();
  upload_ = *std::move(upload);
  return absl::OkStatus();
}

absl::Status UploadSession::StartUnnamed() {
  if (!is_dataset()) return InvalidArgument("sha256: what a node delivers is named by its hash");
  if (first_.offset() != 0) {
    return InvalidArgument("offset: an upload without a sha256 begins at 0, and is not resumed");
  }
  SFT_ASSIGN_OR_RETURN(upload_, blobs_.BeginUnnamed(first_.size(), key_));
  if (limits_ == nullptr) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const auto parts, blobs_.Unfinished(key_));
  SFT_ASSIGN_OR_RETURN(reserved_, limits_->Reserve(sender_.project, upload_->sha256(),
                                                   first_.size(), first_.size(), parts));
  return absl::OkStatus();
}

// Artifacts and checkpoints come from running jobs: they are accepted as long as possible.
absl::Status UploadSession::CheckLimits() {
  if (!is_dataset()) {
    if (deliveries_ == nullptr) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(room_,
                         deliveries_->Reserve(target(), {sender_.node, sender_.attempt_uid, key_,
                                                         first_.sha256(), first_.size()}));
    return absl::OkStatus();
  }
  if (limits_ == nullptr) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const BlobStore::Stat stat, blobs_.Find(first_.sha256(), key_));
  SFT_ASSIGN_OR_RETURN(const auto parts, blobs_.Unfinished(key_));
  SFT_ASSIGN_OR_RETURN(
      reserved_,
      limits_->Reserve(sender_.project, first_.sha256(), first_.size(),
                       stat.complete ? 0 : std::max<int64_t>(0, first_.size() - stat.received),
                       parts));
  return absl::OkStatus();
}

absl::Status UploadSession::Take(const v1::UploadBlobRequest& message) {
  if (!started_) SFT_RETURN_IF_ERROR(Start(message));
  if (complete_ || message.data().empty()) return absl::OkStatus();
  unchecked_ += static_cast<int64_t>(message.data().size());
  if (unchecked_ > kLookEvery) {
    unchecked_ = 0;
    SFT_RETURN_IF_ERROR(CheckGoingOn());
  }
  return upload_->Append(message.data());
}

absl::Status UploadSession::CheckGoingOn() {
  if (is_dataset()) return limits_ == nullptr ? absl::OkStatus() : limits_->CheckGoingOn();
  return deliveries_ == nullptr ? absl::OkStatus() : deliveries_->CheckGoingOn(sender_.node);
}

absl::Status UploadSession::KeepDataset(const std::string& path, const Actor& actor,
                                        int64_t& rows) {
  SFT_ASSIGN_OR_RETURN(const data::DatasetCheck found,
                       data::CheckUpload(path, first_.display_name()));
  rows = found.rows;
  const DatasetRecord dataset{
      first_.sha256(),       first_.size(),          found.rows,
      first_.display_name(), sender_.owner,          UnixMicros(clock_.Wall()),
      found.odd_rows,        found.first_odd_row,    found.first_odd,
      data::kCheckVersion,   data::ProtocolOf(found)};
  // A complete blob may be about to be removed.
  const MutexLock lock(blobs_.gate());
  if (complete_) SFT_RETURN_IF_ERROR(blobs_.PathOf(first_.sha256()).status());
  return store_.Write(
      [&](Database& db) -> absl::Status {
        if (limits_ != nullptr) {
          SFT_RETURN_IF_ERROR(
              limits_->CheckTaken(db, sender_.project, dataset.sha256, dataset.size));
        }
        SFT_RETURN_IF_ERROR(store::PutDataset(db, dataset));
        return store::PutDatasetOwner(db, dataset.sha256, sender_.project, sender_.owner,
                                      dataset.display_name, dataset.created_us);
      },
      actor.audit);
}

absl::StatusOr<v1::UploadBlobResponse> UploadSession::Finish(const Actor& actor) {
  if (!started_) return InvalidArgument("an upload without a first message");
  int64_t rows = 0;
  // The row of `datasets` is stored before the blob is complete: whoever finds the blob finds the
  // row too.
  const auto check = [&](const std::string& path) {
    if (first_.sha256().empty()) {
      first_.set_sha256(upload_->sha256());
      first_.set_size(upload_->received());
    }
    return is_dataset() ? KeepDataset(path, actor, rows) : absl::OkStatus();
  };
  if (!complete_) {
    SFT_RETURN_IF_ERROR(upload_->Finish(check));
  } else if (is_dataset()) {
    SFT_ASSIGN_OR_RETURN(const std::string path, blobs_.PathOf(first_.sha256()));
    SFT_RETURN_IF_ERROR(check(path));
  }
  if (!is_dataset()) SFT_RETURN_IF_ERROR(target().MarkBrought(first_.sha256(), key_));
  v1::UploadBlobResponse response;
  response.mutable_blob()->set_sha256(first_.sha256());
  response.mutable_blob()->set_size(first_.size());
  response.set_rows(rows);
  return response;
}

}  // namespace sft::server
