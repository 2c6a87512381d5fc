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

// Checkpoints: registers those that workers write, requests those that users ask for, and deletes
// old ones. Their blobs have a store of their own because they are deleted. Thread-safe.
//
// A job that has not ended keeps its newest checkpoint.save_total_limit checkpoints and the best
// one; an ended job keeps the same for kKeepSucceeded or kKeepFailed. A checkpoint that a job is
// about to continue from is always kept.
class Checkpoints {
 public:
  static constexpr std::chrono::hours kKeepSucceeded{24};
  static constexpr std::chrono::hours kKeepFailed{7 * 24};
  // Age at which an upload that no commit followed is dropped.
  static constexpr std::chrono::hours kKeepUploads{6};

  // `wake` requests a reconcile tick, to tell workers what is kept.
  Checkpoints(Store& store, Clock& clock, BlobStore& blobs, ChangeHub& hub,
              std::function<void()> wake)
      : store_(store), clock_(clock), blobs_(blobs), hub_(hub), wake_(std::move(wake)) {}

  // See WorkerService.CommitCheckpoint.
  absl::StatusOr<v1::CommitCheckpointResponse> Commit(const v1::CommitCheckpointRequest& request);
  // Asks the job's ranks for a checkpoint. FAILED_PRECONDITION when the job does not run.
  absl::StatusOr<v1::CheckpointJobResponse> Ask(const v1::CheckpointJobRequest& request,
                                                const Actor& actor = {});
  absl::StatusOr<v1::ListCheckpointsResponse> List(const std::string& name);

  // Deletes superseded checkpoints, those of jobs that ended long ago, and blobs and uploads
  // without references. Cheap when there is nothing to do; call it every minute.
  absl::Status Sweep();

  // Result of DropJob, real or dry run.
  struct Dropped {
    int count = 0;
    int64_t bytes = 0;       // stored on the server
    bool elsewhere = false;  // some are on nodes or in shared folders
    bool in_use = false;     // a job that has not ended continues from them: nothing is removed
  };
  // Removes all checkpoints of an ended job.
  absl::StatusOr<Dropped> DropJob(const std::string& job_id, bool dry_run,
                                  AuditRow* audit = nullptr);

  BlobStore& blobs() { return blobs_; }

 private:
  // Forgets the files that the calling node has sent for older steps of the attempt, in part or
  // whole, and that no checkpoint has: they no longer count against the attempt's limit
  // (DeliveryLimits). A node sends one step after the other.
  absl::Status ForgetOvertaken(const v1::CommitCheckpointRequest& request) SFT_REQUIRES(mutex_);
  absl::Status RemoveBlobs(const std::vector<std::string>& hashes) SFT_REQUIRES(mutex_);
  absl::Status SweepRows(std::vector<std::string>& unused);
  absl::Status SweepBlobs() SFT_REQUIRES(mutex_);

  Store& store_;
  Clock& clock_;
  BlobStore& blobs_;
  ChangeHub& hub_;
  const std::function<void()> wake_;
  // Lock between references and removal: held from the check that a blob exists to the commit that
  // refers to it, and from the check for references until a blob is removed. Never acquired inside
  // the store.
  Mutex mutex_;
};

}  // namespace sft::server
