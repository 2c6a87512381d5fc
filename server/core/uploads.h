#pragma once

#include <memory>
#include <string>

#include "common/base/clock.h"
#include "server/blob/blob_store.h"
#include "server/core/intake_limits.h"
#include "server/state/names.h"
#include "server/store/store.h"
#include "sft/v1/data_service.pb.h"

namespace sft::server {

// One upload from its first message to its answer. Not thread-safe: one call owns it.
class UploadSession {
 public:
  // Files of checkpoints go to `checkpoints`, all others to `blobs`. A data set is uploaded for a
  // project, which holds it then; `limits` keeps it out where there is no room; null: nothing does.
  UploadSession(BlobStore& blobs, BlobStore& checkpoints, Store& store, Clock& clock,
                std::string owner, std::string project = kDefaultProject,
                IntakeLimits* limits = nullptr)
      : limits_(limits),
        blobs_(blobs),
        checkpoints_(checkpoints),
        store_(store),
        clock_(clock),
        owner_(std::move(owner)),
        project_(std::move(project)) {}

  // The first message names the blob; this and every later one brings bytes. A blob that is
  // complete already takes no bytes and is fine; a data set that another project has uploaded is
  // taken once more.
  absl::Status Take(const v1::UploadBlobRequest& message);
  // Checks and keeps the blob; of a data set also its rows, which become a row of `datasets`.
  absl::StatusOr<v1::UploadBlobResponse> Finish();

 private:
  absl::Status Start(const v1::UploadBlobRequest& message);
  absl::Status CheckLimits();
  bool is_dataset() const { return first_.purpose() == v1::UploadBlobRequest::DATASET; }

  IntakeLimits* const limits_;
  BlobStore& blobs_;
  BlobStore& checkpoints_;
  Store& store_;
  Clock& clock_;
  const std::string owner_;
  const std::string project_;
  v1::UploadBlobRequest first_;  // without its bytes
  bool started_ = false, complete_ = false;
  int64_t unchecked_ = 0;  // bytes taken since the disk was looked at
  std::unique_ptr<IntakeLimits::Reservation> reserved_;
  std::unique_ptr<BlobStore::Upload> upload_;
};

// How much of an upload is there, as one of this project sees it: what another one has uploaded is
// not. An empty project sees all.
absl::StatusOr<BlobStore::Stat> FindUpload(BlobStore& blobs, Store& store,
                                           const std::string& project, const std::string& sha256);

}  // namespace sft::server
