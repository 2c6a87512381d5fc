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

// Who sends a blob. What one has sent, in part or whole, no other sees, goes on with or counts as
// his own.
struct Sender {
  std::string owner;                      // the principal, for what is listed
  std::string project = kDefaultProject;  // of a data set
  // Of what an attempt delivers. A worker of the version before names no attempt, and on an open
  // server no node either.
  std::string node = {}, attempt_uid = {};

  // As whose the blob store knows what this one sends for the purpose. INVALID_ARGUMENT for a
  // purpose that this server does not know.
  absl::StatusOr<std::string> KeyOf(v1::UploadBlobRequest::Purpose purpose) const;
};

// Whether the node may deliver for the attempt: FAILED_PRECONDITION when the attempt was not given
// to it; without an attempt, when it was given none.
absl::Status CheckDelivery(Store& store, const std::string& node, const std::string& attempt_uid);
// Whether all bytes of the files came from this node for this attempt, as it names them. `blobs` is
// the store that they are in. ABORTED for what has to be uploaded (again).
using DeliveredFiles = google::protobuf::RepeatedPtrField<v1::ArtifactFile>;
absl::Status CheckDelivered(const BlobStore& blobs, const DeliveredFiles& files,
                            const std::string& node, const std::string& attempt_uid);

// One upload from its first message to its answer. Not thread-safe: one call owns it.
class UploadSession {
 public:
  // Files of checkpoints go to `checkpoints`, all others to `blobs`. A data set is uploaded for a
  // project, which holds it then; `limits` keeps it out where there is no room, and `deliveries`
  // what an attempt brings; null: nothing does.
  UploadSession(BlobStore& blobs, BlobStore& checkpoints, Store& store, Clock& clock, Sender sender,
                IntakeLimits* limits = nullptr, DeliveryLimits* deliveries = nullptr)
      : limits_(limits),
        deliveries_(deliveries),
        blobs_(blobs),
        checkpoints_(checkpoints),
        store_(store),
        clock_(clock),
        sender_(std::move(sender)) {}

  // The first message names the blob; this and every later one brings bytes. A blob that this
  // sender has brought already takes no bytes and is fine; one that only others have brought is
  // taken once more.
  absl::Status Take(const v1::UploadBlobRequest& message);
  // Checks and keeps the blob; of a data set also its rows, which become a row of `datasets`.
  absl::StatusOr<v1::UploadBlobResponse> Finish(const Actor& actor = {});

 private:
  absl::Status Start(const v1::UploadBlobRequest& message);
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
  std::string key_;              // the sender's, for this purpose
  bool started_ = false, complete_ = false;
  int64_t unchecked_ = 0;  // bytes taken since the disk was looked at
  std::unique_ptr<IntakeLimits::Reservation> reserved_;
  std::unique_ptr<DeliveryLimits::Reservation> room_;
  std::unique_ptr<BlobStore::Upload> upload_;
};

// How much of a blob this sender has brought.
absl::StatusOr<BlobStore::Stat> FindUpload(BlobStore& blobs, Store& store, const Sender& sender,
                                           v1::UploadBlobRequest::Purpose purpose,
                                           const std::string& sha256);

}  // namespace sft::server
