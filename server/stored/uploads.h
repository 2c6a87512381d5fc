#pragma once

#include <memory>
#include <string>

#include "common/base/clock.h"
#include "server/blob/blob_store.h"
#include "server/core/intake_limits.h"
#include "server/fleet/delivery_limits.h"
#include "server/state/names.h"
#include "server/store/store.h"
#include "sft/v1/data_service.pb.h"

namespace sft::server {

// The sender of a blob. What one sender has sent, in part or whole, no other sees, continues or
// counts as their own.
struct Sender {
  std::string owner;                      // the principal, for lists
  std::string project = kDefaultProject;  // project of a data set
  // Set for an attempt's deliveries. A worker of the previous version names no attempt, and on an
  // open server no node either.
  std::string node = {}, attempt_uid = {};

  // The uploader's key in the blob store for this purpose. INVALID_ARGUMENT for a purpose that this
  // server does not know.
  absl::StatusOr<std::string> KeyOf(v1::UploadBlobRequest::Purpose purpose) const;
};

// OK when the node may deliver for the attempt: FAILED_PRECONDITION when the attempt was not given
// to it or, without an attempt, when it was given none.
absl::Status CheckDelivery(Store& store, const std::string& node, const std::string& attempt_uid);
// Checks that all bytes of the files came from this node for this attempt. `blobs` is the store
// that holds them. ABORTED for a file that has to be uploaded (again).
using DeliveredFiles = google::protobuf::RepeatedPtrField<v1::ArtifactFile>;
absl::Status CheckDelivered(const BlobStore& blobs, const DeliveredFiles& files,
                            const std::string& node, const std::string& attempt_uid);

// One upload, from its first message to its answer. Not thread-safe: one call owns it.
class UploadSession {
 public:
  // Files of checkpoints go to `checkpoints`, all others to `blobs`. A data set is uploaded for a
  // project, which then holds it; `limits` refuses it where there is no room, and `deliveries`
  // limits an attempt's files; null means no limits.
  UploadSession(BlobStore& blobs, BlobStore& checkpoints, Store& store, Clock& clock, Sender sender,
                IntakeLimits* limits = nullptr, DeliveryLimits* deliveries = nullptr)
      : limits_(limits),
        deliveries_(deliveries),
        blobs_(blobs),
        checkpoints_(checkpoints),
        store_(store),
        clock_(clock),
        sender_(std::move(sender)) {}

  // The first message names the blob, or of a data set leaves that to Finish; it and every later
  // one carry bytes. A blob that this sender has sent already takes no bytes and is OK; one that
  // only others have sent is received once more.
  absl::Status Take(const v1::UploadBlobRequest& message);
  // Checks and keeps the blob; for a data set also checks its rows and adds it to `datasets`.
  absl::StatusOr<v1::UploadBlobResponse> Finish(const Actor& actor = {});

 private:
  absl::Status Start(const v1::UploadBlobRequest& message);
  absl::Status StartUnnamed();
  absl::Status CheckLimits();
  absl::Status CheckGoingOn();
  absl::Status KeepDataset(const std::string& path, const Actor& actor, int64_t& rows);
  bool is_dataset() const { return first_.purpose() == v1::UploadBlobRequest::DATASET; }
  BlobStore& target() {
    return first_.purpose() == v1::UploadBlobRequest::CHECKPOINT ? checkpoints_ : blobs_;
  }

  IntakeLimits* const limits_;
  DeliveryLimits* const deliveries_;
  BlobStore& blobs_;
  BlobStore& checkpoints_;
  Store& store_;
  Clock& clock_;
  const Sender sender_;
  v1::UploadBlobRequest first_;  // without its bytes
  std::string key_;              // the sender's key for this purpose
  bool started_ = false, complete_ = false;
  int64_t unchecked_ = 0;  // bytes received since the disk was last checked
  std::unique_ptr<IntakeLimits::Reservation> reserved_;
  std::unique_ptr<DeliveryLimits::Reservation> room_;
  std::unique_ptr<BlobStore::Upload> upload_;
};

// How much of a blob this sender has sent.
absl::StatusOr<BlobStore::Stat> FindUpload(BlobStore& blobs, Store& store, const Sender& sender,
                                           v1::UploadBlobRequest::Purpose purpose,
                                           const std::string& sha256);

}  // namespace sft::server
