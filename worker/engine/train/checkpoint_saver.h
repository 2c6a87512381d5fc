#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/spec/job_spec.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/train/background.h"
#include "worker/engine/train/best_tracker.h"
#include "worker/engine/train/observer.h"
#include "worker/engine/train/shard.h"
#include "worker/engine/train/training_model.h"

namespace sft::engine {

// Folder of the checkpoints, and the ranks that share a node.
struct CheckpointPlace {
  std::filesystem::path dir;  // holds the job's checkpoints on this node; empty: none is written
  int first_rank = 0;         // global rank of the node's first
  int local_ranks = 0;        // ranks of the node; 0: all
  int64_t file_bytes = ShardWriter::kFileBytes;
  int ranks_of_node(int world) const { return local_ranks > 0 ? local_ranks : world; }
};

// Saves the state of a training while it runs. All ranks decide alike, from flags that they
// exchange once a step with the loss: nothing here waits for another rank's disk.
//
//   step n      Save: every rank that holds a first copy begins to copy its part to host memory
//               and writes it to <dir>/step-n.partial (ShardWriter), on a thread of its own; the
//               first rank of a node writes a file in any case, if need be without a tensor
//   a later one every rank's flag says that its files are durable: the ranks exchange sizes
//               and hashes; rank 0 writes the manifest, syncs the folder and renames it to step-n
//   a later one rank 0's flag says so: the first rank of each other node renames its folder
//               (unless it is rank 0's own: shared storage), and each reports
//
// One checkpoint at a time: one that is due while another is written is skipped, with a message;
// one that was asked for, one by time and one of the last step are made when the other is done. A
// rank that cannot write says which file and why; all ranks then drop the checkpoint, leave nothing
// of it, train on and try again when the next is due. Thread-compatible; borrows all but the
// options.
class CheckpointSaver {
 public:
  // Bits that a rank tells the others after each step.
  enum Flag : uint32_t { kStop = 1, kAsked = 2, kTimeDue = 4, kDone = 8, kFailed = 16 };

  // State of the training after a step.
  struct Moment {
    int64_t step = 0;  // taken
    double epoch = 0;
    int64_t samples = 0;
    bool ends_epoch = false;
    bool last = false;             // of the run
    std::optional<double> metric;  // of the validation after this step
    bool best = false;             // it is the best so far
  };

  CheckpointSaver(CheckpointPlace place, const spec::JobSpec& spec, Stamp stamp,
                  TrainingModel& model, Communicator& comm, TrainObserver& observer, Clock& clock);

  // This rank's flags. `asked`: someone wants a checkpoint now.
  uint32_t OwnFlags(bool asked);
  // Goes on with the checkpoint under way, given every rank's flags.
  void OnFlags(std::span<const uint32_t> flags);
  // To be called before weights or states change.
  void BeforeUpdate();
  // Saves where something makes a checkpoint due. `best_weights`: TrainingModel::Snapshot of the
  // best step, where that is an earlier one.
  void AfterStep(const Moment& moment, const BestTracker& best,
                 const std::vector<at::Tensor>& best_weights);
  // The run was told to stop after that step: saves first where a checkpoint was asked for, else
  // gives up the one under way.
  void Stop(const Moment& moment, const BestTracker& best,
            const std::vector<at::Tensor>& best_weights);
  // Returns when the checkpoint under way is complete or dropped.
  void Finish();

 private:
  enum class Phase { kIdle, kShards, kManifest };

  bool first_of_node() const { return comm_.rank() == place_.first_rank; }
  std::filesystem::path Final() const { return place_.dir / CheckpointName(manifest_.step); }
  std::filesystem::path Partial() const;
  std::string Due(const Moment& moment) const;
  // Once, before the first checkpoint: has the host's memory ready for it.
  void Reserve();
  void Save(const std::string& reason, const Moment& moment, const BestTracker& best,
            const std::vector<at::Tensor>& best_weights);
  void GatherFiles();
  void StartManifest();
  void Settle();
  void Drop(std::span<const uint32_t> flags);
  void Abandon();
  void RemovePartial();

  CheckpointPlace place_;
  spec::JobSpec::Checkpoint when_;
  bool save_best_;
  std::string sharding_;
  Stamp stamp_;
  TrainingModel& model_;
  Communicator& comm_;
  TrainObserver& observer_;
  Clock& clock_;

  ShardWriter shard_;
  Background background_;
  Phase phase_ = Phase::kIdle;
  Manifest manifest_;                // of the checkpoint under way
  std::vector<CheckpointFile> own_;  // the background's until it is done
  CheckpointReport report_;          // of the checkpoint under way
  MonoTime started_;
  std::atomic<int64_t> finished_ns_ = 0;  // of the monotonic clock, when it became durable
  MonoTime last_save_;
  bool asked_ = false, time_due_ = false, reserved_ = false;
};

// Renames a finished folder into its place, durably; one that is there already gives way. Throws
// InfrastructureError.
void CommitFolder(const std::filesystem::path& partial, const std::filesystem::path& target);

// Removes what an earlier run left half-written in the folder of checkpoints.
absl::Status RemoveLeftovers(const std::filesystem::path& dir);

}  // namespace sft::engine
