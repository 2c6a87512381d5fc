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

// Registers what an attempt's ranks on this node have saved with the server, beside the training:
// files of up to the upload limit, and parts of a checkpoint of several nodes, go there as blobs;
// what lies in the shared folder or is larger is named by its place. A step that a newer one has
// overtaken is not worth its transfer, but for a best one; of a gang over several nodes the server
// says which step all nodes register (Collect), as each would skip others. Thread-safe; Work is
// called by one thread.
class CheckpointShipper {
 public:
  struct Identity {
    std::string attempt_uid;
    int64_t epoch = 0;
    std::string job_id;
    // This node has all ranks of the gang, and so the whole of each checkpoint.
    bool whole = true;
    std::optional<RankUser> rank_user = std::nullopt;  // who writes the files
  };
  struct Hooks {
    std::function<void(int64_t step)> on_registered;  // hears of each step that is settled
    std::function<bool()> server_is_away;             // nobody could be told of an end
    std::function<void()> on_change;                  // of retrying()
  };
  // `setup`, `server` and `clock` are borrowed. Steps up to `registered` the server has already.
  CheckpointShipper(Identity identity, const NodeSetup& setup, ServerApi& server, Clock& clock,
                    int64_t registered, Hooks hooks);

  // A checkpoint that lies complete on this node. Steps come in order; a repeat is ignored.
  void Add(const channel::CheckpointEvent& event);
  // The step that all nodes of the gang register next; what is older need not be.
  void Collect(int64_t step);
  // No other checkpoint comes: the newest is registered without being asked for. True the first
  // time.
  bool End();
  // Whatever is not registered yet is not wanted, nor what comes; a transfer under way ends.
  void Drop();
  // Ends a transfer under way; the object is about to go.
  void Interrupt();
  // Nothing is left to register.
  bool Idle() const;
  // Newest step that was added; 0: none.
  int64_t newest() const;
  bool whole() const { return identity_.whole; }
  // What fails and is tried again; empty: nothing.
  std::string retrying() const;

  // Registers one; the time until there may be more to do.
  Nanos Work();

 private:
  // Leaves out what is overtaken; the step to register now, if there is one.
  std::optional<channel::CheckpointEvent> Next() SFT_REQUIRES(mutex_);
  absl::Status Register(const channel::CheckpointEvent& event);
  bool IsDirectory(const std::string& path) const;
  // Whether the files go to the server.
  bool Uploads(const channel::CheckpointEvent& event) const;
  absl::Status Upload(const channel::CheckpointEvent& event, v1::CommitCheckpointRequest& request);
  bool Stopped() const;
  // Whether the step shall be tried again.
  bool TryAgain(int64_t step, const absl::Status& why);
  void SetRetrying(const std::string& text);

  const Identity identity_;
  const NodeSetup& setup_;
  ServerApi& server_;
  Clock& clock_;
  const Hooks hooks_;
  Retries retries_;    // of the thread that works,
  int64_t tried_ = 0;  // and of this step

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
