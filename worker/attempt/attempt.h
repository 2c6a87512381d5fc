#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/attempt/attempt_record.h"
#include "worker/attempt/gang_watch.h"
#include "worker/attempt/host_evidence.h"
#include "worker/attempt/shim_client.h"
#include "worker/attempt/staging.h"
#include "worker/base/rank_user.h"
#include "worker/base/retries.h"
#include "worker/base/setup.h"
#include "worker/channel/launch.h"
#include "worker/gpus/inventory.h"
#include "worker/node/port_lease.h"
#include "worker/shipping/checkpoint_shipper.h"
#include "worker/shipping/shipper.h"
#include "worker/transfer/server_api.h"

namespace sft::worker {

// What an attempt works with; all borrowed.
struct AttemptServices {
  const NodeSetup& setup;
  Stager& stager;
  Inventory& inventory;
  ServerApi& server;
  ShimHost& shims;
  Clock& clock;
  // LD_LIBRARY_PATH of ranks, or why none can start; may wait for the search at the worker's start.
  std::function<absl::StatusOr<std::string>()> torch_lib_dir;
  // Called, without a lock held, when Status() has changed in a way the server should hear of at
  // once.
  std::function<void()> on_change;
};

// One attempt on this node, from its dispatch to the acknowledgement of all it made:
//
//   STAGING -> READY -> PREPARING -> RUNNING -> (STOPPING) -> FINISHING -> DONE
//
// Three threads drive it. Control() never waits for the network: it starts, watches and stops the
// shim. Io() does what may take long: staging, shipping of logs and events, the artifact.
// CheckpointIo() may take longest and must keep neither waiting: it uploads checkpoints.
// Everything else may be called from any thread. A new object over an old folder continues where
// the last one was.
class Attempt {
 public:
  Attempt(AttemptRecord record, const AttemptServices& services);

  const std::string& uid() const { return uid_; }
  const std::string& job_id() const { return job_id_; }
  int64_t resume_step() const { return resume_step_; }  // that it goes on from; 0: none
  // Nothing below it is written or registered any more.
  int64_t settled_step() const;
  int64_t epoch() const { return epoch_; }

  // What the server wants of it.
  void Direct(const v1::DesiredAttempt& desired);
  // Nobody takes what it has to say: it stops and needs no acknowledgement. What `lasts`, no call
  // of this worker being taken any more, leaves all of it on disk for the worker's next life.
  void Abandon(const std::string& reason, bool lasts = false);
  v1::AttemptStatus Status() const;
  // The hashes of its data sets.
  std::vector<std::string> Blobs() const;
  // Nobody wants anything of it any more: its folder may go.
  bool Forgettable() const;
  // Not DONE, and no process runs: Control has nothing to look at soon.
  bool HasProcesses() const;

  // Control thread. `heard`: the last moment at which the server surely heard of this worker (zero:
  // not in this life of it), from which the fencing limit counts.
  void Control(MonoTime heard);
  // Io thread: one piece of work; the time until there may be more.
  Nanos Io();
  // Checkpoint thread: as Io.
  Nanos CheckpointIo() { return checkpoints_.Work(); }
  // From another thread: Io() shall return soon; the object is about to go.
  void Interrupt();

 private:
  using State = v1::AttemptStatus::State;

  // Control thread.
  void Launch(const std::string& rendezvous, MonoTime heard);
  absl::Status WriteLaunchFiles(const std::string& rendezvous, MonoTime heard);
  // What ranks write into; `delivers`: rank 0 is here, and its output folder shall be empty.
  absl::Status MakeRankFolders(const channel::RankLaunch& launch, bool delivers);
  // OK: the shim was started, or may have been, now or before: what it writes tells.
  absl::Status StartShim();
  void Watch(MonoTime heard);
  // A shim that says nothing for long is told to the server: nobody can know whether ranks live.
  void SetSilent(bool silent, const std::string& what);
  // A status.json that cannot be had: the shim is started, or lost.
  void WithoutStatus(const absl::Status& status, MonoTime heard);
  // The last status there will be.
  void ShimEnded();
  // Why, by what shim and ranks left behind.
  v1::Verdict JudgeEnd();
  // Passes the server's wish to end, and its word that it heard of us, on to the shim.
  void SteerShim(MonoTime heard);
  // Looks for ranks that hang or are slow.
  void LookAtRanks();
  void Warn(const std::string& message);
  // What the fencing limit leaves no time for must not start.
  bool Fenced(MonoTime heard) const;
  void ProcessesGone(const v1::Verdict& verdict);
  void CheckMemoryIsBack();
  // Why the memory of the attempt's GPUs is not seen back; empty: it is. `unseen` gets what is let
  // go without that, of GPUs that nothing is placed on.
  std::string MemoryHeld(const AttemptRecord& record, std::vector<std::string>& unseen) const;
  HostEvidence LookAtHost(const AttemptRecord& record) const;
  absl::StatusOr<channel::ShimStatus> ReadShimStatus();

  // Io thread.
  Nanos Stage();
  // Staging without the waiting: what a dispatch needs is brought here and checked.
  absl::Status StageOnce();
  // What failed is tried again: says so, and when.
  Nanos TryAgain(Retries& retries, std::string_view what, const absl::Status& why);
  void Succeeded(Retries& retries);
  // Nobody could be told of an end now.
  bool ServerIsAway() const;
  Nanos EndStaging(const absl::Status& why);
  // What could not be told to the server for too long is left out of the attempt's end.
  void LeaveOutUnshipped(const absl::Status& why);
  Nanos ShipLive();
  Nanos Finish();
  // Delivers the artifact where this node has to; OK when nothing is left to do.
  absl::Status Deliver();
  void OnEvent(int rank, const channel::Event& event);
  // Finds the checkpoints that an earlier life of the worker did not register.
  void FindCheckpoints();
  void OnCheckpointRegistered(int64_t step);

  // Control thread: passes on the wish for a checkpoint. Whether the stop has to wait for one.
  void AskForCheckpoints();
  bool WaitsForLastCheckpoint();

  void Conclude(const v1::Verdict& verdict);
  void Enter(State state, const std::string& reason = "");
  bool Stopping() const;
  void Save();
  absl::StatusOr<channel::Answer> AskShim(const channel::Command& command) const;

  const std::string uid_;
  const std::string job_id_;
  const int64_t resume_step_;
  const int64_t epoch_;
  const std::string dir_;
  const AttemptServices services_;

  const Nanos fencing_;  // zero: none
  // With whose rights it works on what its ranks write.
  const std::optional<RankUser> rank_user_;

  // Control thread only.
  channel::ShimStatus shim_;
  GangWatch watch_;
  bool stop_sent_ = false;
  MonoTime renewed_at_{};                  // the moment that was passed on to the shim last
  std::optional<MonoTime> last_asked_at_;  // for the checkpoint before a stop
  int64_t last_asked_after_ = 0;           // the newest step then
  MonoTime start_again_at_{};              // not before, after a start whose end is not known
  std::optional<MonoTime> silent_since_;   // since when the shim says nothing, or takes no order
  std::string silence_;                    // what is told of it; empty: nothing
  std::optional<MonoTime> gone_at_;
  std::optional<v1::Verdict> gone_verdict_;

  // Io thread only.
  Shipper shipper_;
  // What fails while the ranks work uses up no patience of the end.
  Retries staging_, live_shipping_, shipping_, delivery_;

  bool confirmed_ = false;  // after the delivery: the server has all events

  CheckpointShipper checkpoints_;
  Mutex save_mutex_;  // from the copy of the record to its file

  mutable Mutex mutex_;
  AttemptRecord record_ SFT_GUARDED_BY(mutex_);
  State state_ SFT_GUARDED_BY(mutex_) = v1::AttemptStatus::STAGING;
  std::string reason_ SFT_GUARDED_BY(mutex_);
  v1::DesiredAttempt::Intent intent_ SFT_GUARDED_BY(mutex_) = v1::DesiredAttempt::RUN;
  std::string intent_reason_ SFT_GUARDED_BY(mutex_);
  bool abandoned_ SFT_GUARDED_BY(mutex_) = false;
  bool kept_ SFT_GUARDED_BY(mutex_) = false;  // for the next life, although it is abandoned
  int64_t checkpoints_wanted_ SFT_GUARDED_BY(mutex_) = 0;
  bool checkpoint_first_ SFT_GUARDED_BY(mutex_) = false;
  Nanos checkpoint_patience_ SFT_GUARDED_BY(mutex_){0};  // for it; at least the grace
  bool interrupted_ SFT_GUARDED_BY(mutex_) = false;
  bool stuck_ SFT_GUARDED_BY(mutex_) = false;
  std::string retrying_ SFT_GUARDED_BY(mutex_);
  MonoTime heard_ SFT_GUARDED_BY(mutex_){};           // as Control was told last
  bool server_spoke_ SFT_GUARDED_BY(mutex_) = false;  // since the last look
  std::optional<StagedJob> staged_ SFT_GUARDED_BY(mutex_);
  std::string torch_lib_dir_ SFT_GUARDED_BY(mutex_);
  PortLease port_ SFT_GUARDED_BY(mutex_);
  std::string desired_rendezvous_ SFT_GUARDED_BY(mutex_);
  v1::Progress progress_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::worker
