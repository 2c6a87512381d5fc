#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/blob/blob_store.h"
#include "server/core/change_hub.h"
#include "server/store/store.h"
#include "sft/v1/job_service.pb.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::server {

// Checkpoints: what workers register, what users ask for, and what is deleted. Their blobs lie in a
// store of their own, because they go again. Thread-safe.
//
// Kept are, of a job that has not ended, the newest checkpoint.save_total_limit ones and the best;
// of an ended one the same for kKeepSucceeded or kKeepFailed; and whatever a job is about to go on
// from.
class Checkpoints {
 public:
  static constexpr std::chrono::hours kKeepSucceeded{24};
  static constexpr std::chrono::hours kKeepFailed{7 * 24};
  // An upload that no commit followed is dropped after that.
  static constexpr std::chrono::hours kKeepUploads{6};

  // `wake` asks for a reconcile tick soon: workers are told what shall stay.
  Checkpoints(Store& store, Clock& clock, BlobStore& blobs, ChangeHub& hub,
              std::function<void()> wake)
      : store_(store), clock_(clock), blobs_(blobs), hub_(hub), wake_(std::move(wake)) {}

  // As WorkerService.CommitCheckpoint.
  absl::StatusOr<v1::CommitCheckpointResponse> Commit(const v1::CommitCheckpointRequest& request);
  // Asks the job's ranks for one. FAILED_PRECONDITION when the job does not run.
  absl::StatusOr<v1::CheckpointJobResponse> Ask(const v1::CheckpointJobRequest& request,
                                                const Actor& actor = {});
  absl::StatusOr<v1::ListCheckpointsResponse> List(const std::string& name);

  // Deletes what is to go: superseded ones, those of jobs that ended long ago, blobs and uploads
  // that nothing refers to. Cheap when there is nothing to do; call it every minute.
  absl::Status Sweep();

  // What DropJob removed, or would.
  struct Dropped {
    int count = 0;
    int64_t bytes = 0;       // that the server kept
    bool elsewhere = false;  // some lie on nodes or in shared folders
    bool in_use = false;     // a job that has not ended goes on from them: nothing is removed
  };
  // All checkpoints of a job that has ended.
  absl::StatusOr<Dropped> DropJob(const std::string& job_id, bool dry_run,
                                  AuditRow* audit = nullptr);

  BlobStore& blobs() { return blobs_; }

 private:
  absl::Status RemoveBlobs(const std::vector<std::string>& hashes) SFT_REQUIRES(mutex_);
  absl::Status SweepRows(std::vector<std::string>& unused);
  absl::Status SweepBlobs() SFT_REQUIRES(mutex_);

  Store& store_;
  Clock& clock_;
  BlobStore& blobs_;
  ChangeHub& hub_;
  const std::function<void()> wake_;
  // Held from the look whether a blob is there to the commit that refers to it, and from the look
  // whether a blob is referred to until it is removed. Never taken inside the store.
  Mutex mutex_;
};

}  // namespace sft::server
