#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/base/rank_user.h"
#include "worker/base/retries.h"
#include "worker/base/setup.h"
#include "worker/channel/event.h"
#include "worker/transfer/server_api.h"

namespace sft::worker {

// Registers an attempt's checkpoints of this node with the server while training goes on. Files up
// to the upload limit, and parts of a checkpoint of several nodes, are uploaded as blobs; files in
// the shared folder or larger ones are registered by path. A step overtaken by a newer one is not
// transferred, unless it is the best; for a gang on several nodes the server says which step all
// nodes register (Collect), since each would skip different ones. Thread-safe; Work is called by
// one thread.
class CheckpointShipper {
 public:
  struct Identity {
    std::string attempt_uid;
    int64_t epoch = 0;
    std::string job_id;
    // This node has all ranks of the gang, and so the whole of each checkpoint.
    bool whole = true;
    std::optional<RankUser> rank_user = std::nullopt;  // the user who writes the files
  };
  struct Hooks {
    std::function<void(int64_t step)> on_registered;  // called for each step that is settled
    std::function<bool()> server_is_away;  // true while nobody could be told of a failure
    std::function<void()> on_change;       // called when retrying() changes
  };
  // `setup`, `server` and `clock` are borrowed. The server already has steps up to `registered`.
  CheckpointShipper(Identity identity, const NodeSetup& setup, ServerApi& server, Clock& clock,
                    int64_t registered, Hooks hooks);

  // Adds a checkpoint that is complete on this node. Steps come in order; a repeat is ignored.
  void Add(const channel::CheckpointEvent& event);
  // Sets the step that all nodes of the gang register next; older ones need not be.
  void Collect(int64_t step);
  // Call when no other checkpoint will come: the newest is registered without being asked for. True
  // the first time.
  bool End();
  // Drops all checkpoints not yet registered, and future ones; a transfer under way ends.
  void Drop();
  // Ends a transfer under way, before the object is destroyed.
  void Interrupt();
  // True when nothing is left to register.
  bool Idle() const;
  // Newest step added; 0: none.
  int64_t newest() const;
  bool whole() const { return identity_.whole; }
  // The operation that fails and is retried; empty: none.
  std::string retrying() const;

  // Registers one; returns the time until there may be more to do.
  Nanos Work();

 private:
  // Drops overtaken steps; returns the step to register now, if there is one.
  std::optional<channel::CheckpointEvent> Next() SFT_REQUIRES(mutex_);
  absl::Status Register(const channel::CheckpointEvent& event);
  bool IsDirectory(const std::string& path) const;
  // True when the files are uploaded to the server.
  bool Uploads(const channel::CheckpointEvent& event) const;
  absl::Status Upload(const channel::CheckpointEvent& event, v1::CommitCheckpointRequest& request);
  bool Stopped() const;
  // True when the step shall be tried again.
  bool TryAgain(int64_t step, const absl::Status& why);
  void SetRetrying(const std::string& text);

  const Identity identity_;
  const NodeSetup& setup_;
  ServerApi& server_;
  Clock& clock_;
  const Hooks hooks_;
  Retries retries_;    // working thread only,
  int64_t tried_ = 0;  // for this step

  mutable Mutex mutex_;
  std::vector<channel::CheckpointEvent> queue_ SFT_GUARDED_BY(mutex_);  // by step
  int64_t newest_ SFT_GUARDED_BY(mutex_);
  int64_t collect_ SFT_GUARDED_BY(mutex_) = 0;
  bool ended_ SFT_GUARDED_BY(mutex_) = false;
  bool dropped_ SFT_GUARDED_BY(mutex_) = false;
  bool interrupted_ SFT_GUARDED_BY(mutex_) = false;
  std::string retrying_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::worker
