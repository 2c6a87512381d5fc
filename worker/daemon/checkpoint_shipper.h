#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/channel/event.h"
#include "worker/daemon/backoff.h"
#include "worker/daemon/server_api.h"
#include "worker/daemon/setup.h"

namespace sft::worker {

// Registers what an attempt's ranks on this node have saved with the server, beside the training:
// files of up to the upload limit, and parts of a checkpoint of several nodes, go there as blobs;
// what lies in the shared folder or is larger is named by its place. Thread-safe; Work is called by
// one thread.
class CheckpointShipper {
 public:
  struct Identity {
    std::string attempt_uid;
    int64_t epoch = 0;
    std::string job_id;
    // This node has all ranks of the gang, and so the whole of each checkpoint.
    bool whole = true;
  };
  // `setup` and `server` are borrowed. `on_registered` hears of each step that the server has;
  // steps up to `registered` it has already.
  CheckpointShipper(Identity identity, const NodeSetup& setup, ServerApi& server,
                    int64_t registered, std::function<void(int64_t step)> on_registered);

  // A checkpoint that lies complete on this node. Steps come in order; a repeat is ignored.
  void Add(const channel::CheckpointEvent& event);
  // Whatever is not registered yet is not wanted, nor what comes; a transfer under way ends.
  void Drop();
  // Ends a transfer under way; the object is about to go.
  void Interrupt();
  // Nothing is left to register.
  bool Idle() const;
  // Newest step that was added; 0: none.
  int64_t newest() const;

  // Registers one; the time until there may be more to do.
  Nanos Work();

 private:
  absl::Status Register(const channel::CheckpointEvent& event);
  // Whether the files go to the server.
  bool Uploads(const channel::CheckpointEvent& event) const;
  absl::Status Upload(const channel::CheckpointEvent& event, v1::CommitCheckpointRequest& request);
  bool Stopped() const;

  const Identity identity_;
  const NodeSetup& setup_;
  ServerApi& server_;
  const std::function<void(int64_t)> on_registered_;
  Backoff backoff_;

  mutable Mutex mutex_;
  std::vector<channel::CheckpointEvent> queue_ SFT_GUARDED_BY(mutex_);  // by step
  int64_t newest_ SFT_GUARDED_BY(mutex_);
  bool dropped_ SFT_GUARDED_BY(mutex_) = false;
  bool interrupted_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft::worker
