#pragma once

#include <memory>
#include <string>

#include "common/base/clock.h"
#include "server/blob/blob_store.h"
#include "server/store/store.h"
#include "sft/v1/data_service.pb.h"

namespace sft::server {

// One upload from its first message to its answer. Not thread-safe: one call owns it.
class UploadSession {
 public:
  // Files of checkpoints go to `checkpoints`, all others to `blobs`.
  UploadSession(BlobStore& blobs, BlobStore& checkpoints, Store& store, Clock& clock,
                std::string owner)
      : blobs_(blobs),
        checkpoints_(checkpoints),
        store_(store),
        clock_(clock),
        owner_(std::move(owner)) {}

  // The first message names the blob; this and every later one brings bytes. A blob that is
  // complete already takes no bytes and is fine.
  absl::Status Take(const v1::UploadBlobRequest& message);
  // Checks and keeps the blob; of a data set also its rows, which become a row of `datasets`.
  absl::StatusOr<v1::UploadBlobResponse> Finish();

 private:
  absl::Status Start(const v1::UploadBlobRequest& message);

  BlobStore& blobs_;
  BlobStore& checkpoints_;
  Store& store_;
  Clock& clock_;
  const std::string owner_;
  v1::UploadBlobRequest first_;  // without its bytes
  bool started_ = false, complete_ = false;
  std::unique_ptr<BlobStore::Upload> upload_;
};

}  // namespace sft::server
