#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/attempt/attempt_record.h"
#include "worker/base/retries.h"
#include "worker/gpus/inventory.h"

// What to do next for one attempt on this node. Pure: decisions are functions of values, and what
// was done is noted in values. A thread asks for one step, carries it out, notes how it went and
// asks again, until the step is to wait. The states, in order:
//
//   STAGING      io: fetch data, model and checkpoint; try again what may pass, within limits
//   READY        main: wait for rank 0's address, then write the launch files and start the shim
//   PREPARING    main: look at the shim; io: ship logs and events
//   RUNNING      the same, and main looks for ranks that hang
//   STOPPING     the same, until all processes are gone and the GPUs' memory is back
//   FINISHING    io: ship the rest, wait for the checkpoints, deliver the artifact, confirm
//   DONE         main: forget, once nobody wants anything of it
//
// A stop leads from STAGING and READY straight to FINISHING. From PREPARING on only the end of the
// processes does.

namespace sft::worker {

using AttemptState = v1::AttemptStatus::State;

// The server's wish for an attempt. It only grows: a stop is never taken back.
struct Wish {
  bool stop = false;
  std::string stop_reason;
  bool abandoned = false;    // nobody takes what it has to say: no acknowledgement is needed
  bool kept = false;         // although abandoned: its files stay for the worker's next life
  bool interrupted = false;  // this worker ends; ranks go on
  std::string rendezvous;    // address of rank 0; empty: not known yet
  int64_t checkpoints_asked = 0;
  bool checkpoint_first = false;  // write one before a stop
  Nanos checkpoint_patience{0};   // the longest wait for that one; at least the grace

  void Take(const v1::DesiredAttempt& desired);
  void Abandon(const std::string& reason, bool lasts);
  bool leaves() const { return stop || interrupted; }
};

// Where a new object over this record goes on.
AttemptState StateOf(const AttemptRecord& record);

// The attempt's folder may be removed.
bool MayBeForgotten(AttemptState state, const Wish& wish);

// The processes may live: from the launch to the end that the main thread sees.
bool HasProcesses(AttemptState state);

// The server cannot be told of an end now. `heard`: the last moment at which it surely heard of
// this worker; zero: not in this life of it.
bool IsAway(MonoTime heard, MonoTime now);

// ---- the main thread ----

// How the shim looks.
struct ShimView {
  enum class Sight {
    kStatus,     // it says how it is
    kNone,       // there is no status file, and nobody answers
    kForbidden,  // the file may not be read, which says nothing of the processes
    kBroken,     // the file cannot be understood
    kDead,       // the status says that it runs, but its process is gone
  };
  enum class Phase { kOther, kPreparing, kRunning, kStopping, kExited };
  Sight sight = Sight::kNone;
  Phase phase = Phase::kOther;  // of kStatus
  std::string text;             // why it stops; or why there is no status
};
ShimView::Phase PhaseOf(const std::string& shim_state);

// The memory of one GPU of the attempt, after its processes have ended.
struct GpuMemory {
  int slot = 0;
  int64_t before = 0;  // in use before the launch
  Inventory::Memory now;
};

// Tells when the GPUs' memory is back after the processes' end at `gone_at`. `held` says what is
// waited for, and is empty when nothing is; `unseen` says what is let go without having been seen
// back, on GPUs that nothing is placed on.
struct MemoryJudgement {
  std::string held;
  std::vector<std::string> unseen;
};
MemoryJudgement JudgeMemory(const std::vector<GpuMemory>& gpus, MonoTime gone_at, MonoTime now);

enum class ControlDo {
  kWait,           // until the next turn
  kLook,           // at the shim
  kLaunch,         // write the launch files and the record, start the shim
  kStartShim,      // its launch is on record, but it does not show
  kKeepOut,        // no shim that was started earlier may begin any more
  kRenew,          // tell the shim when the server was heard of
  kAskCheckpoint,  // the server wants one
  kAskLast,        // the one before a stop
  kStop,           // tell the shim to end the ranks
  kWatchRanks,     // look for ranks that hang or are slow
  kJudgeEnd,       // the processes are gone: find out why
  kLookAtMemory,   // of the GPUs
  kAwaitMemory,    // ask for newer readings
  kConclude,       // the attempt ends here: on to FINISHING
  kShow,           // tell the server `state` and `text`
};

// Why an attempt or its processes end.
enum class AttemptEnd {
  kStopped,       // before anything was started, or while the artifact was delivered
  kStartFailed,   // the shim could not be started
  kShimLost,      // the shim died, and its ranks with it
  kStatusBroken,  // what the shim wrote cannot be understood
  kExited,        // the shim says that all have ended
  kGone,          // that was judged, and the GPUs' memory is back
  kStagingFailed,
  kStagingGivenUp,  // after enough tries
  kNoTorch,         // ranks cannot start on this node
  kArtifactLost,
};

// What the main thread does next.
struct ControlStep {
  ControlDo what = ControlDo::kWait;
  AttemptEnd end = AttemptEnd::kExited;                       // of kJudgeEnd and kConclude
  AttemptState state = v1::AttemptStatus::STATE_UNSPECIFIED;  // of kShow
  std::string text;                                           // of kShow and kAwaitMemory
  std::vector<std::string> unseen;                            // of kConclude (MemoryJudgement)
};

// What the main thread knows beside the record. Of this life of the worker alone.
struct ControlMemory {
  bool stop_taken = false;               // the shim has the order
  MonoTime renewed_at{};                 // the moment that was passed on last
  std::optional<MonoTime> last_asked;    // when the checkpoint before a stop was asked for
  int64_t last_asked_after = 0;          // the newest step then
  MonoTime start_again_at{};             // not before, after a start whose end is not known
  std::optional<MonoTime> silent_since;  // the shim says nothing, or takes no order to stop
  std::string silence;                   // told of it; empty: nothing yet
  bool stuck = false;                    // that lasts too long; or the memory is held too long
  std::optional<MonoTime> gone_at;       // the processes' end was judged

  // Of this turn.
  std::optional<ShimView> shim;
  std::optional<std::vector<GpuMemory>> gpus;
  std::vector<ControlDo> done;
  bool start_failed = false;
  bool kept_out = false;      // kKeepOut was done
  bool last_refused = false;  // the shim did not take kAskLast
  bool over = false;

  bool Did(ControlDo what) const;
  void BeginTurn();
};

// What the main thread decides by, as it is at this moment.
struct ControlView {
  AttemptState state = v1::AttemptStatus::STAGING;
  std::string reason;             // shown with the state
  int64_t checkpoints_asked = 0;  // of the ranks, by the record
  Wish wish;
  int64_t newest_checkpoint = 0;  // step of the newest on this node
  Nanos fencing{0};               // longest time without the server; 0: for ever
  Nanos grace{0};
  MonoTime heard;  // as for IsAway
  MonoTime now;

  // What the fencing limit leaves no time for must not start.
  bool fenced() const { return fencing > Nanos(0) && now - heard >= fencing; }
};

// At most one launch in the life of a record, none after a stop, and nothing while the worker ends.
// A shim that may have been started is started again where none shows, also for a stop: its lock
// keeps a second one out, and only a shim can say that no rank lives. Where that start fails, the
// earlier one may still begin: the attempt ends only once it cannot.
ControlStep DecideControl(const ControlView& view, const ControlMemory& memory);

// How a step went. `result` is that of the call to the shim, where there was one; UNKNOWN of a
// start: nobody said anything in time. The results of kLook and kLookAtMemory are in `memory`.
void Note(ControlDo what, const absl::Status& result, const ControlView& view,
          ControlMemory& memory);

// ---- the io thread ----

enum class IoDo {
  kWait,            // nothing to do for `then`
  kStage,           // bring here what the job names
  kFindTorch,       // for the ranks
  kReady,           // on to READY
  kShip,            // what logs and events have by now
  kShipRest,        // all of them; the files grow no more
  kTryAgain,        // count the failure of `task`, tell it
  kLeaveOut,        // the server never takes what was not shipped
  kEndCheckpoints,  // no other comes: deliver the newest
  kDeliver,         // the artifact
  kLoseArtifact,    // it is not delivered: the attempt's verdict changes to `end`
  kConfirm,         // ask whether the server still has all events
  kConclude,        // on to FINISHING
  kFinish,          // on to DONE
};

enum class IoTask { kStaging, kLive, kShipping, kDelivery };

// What the io thread does next.
struct IoStep {
  IoDo what = IoDo::kWait;
  // This piece of work ends after the step, and the next may follow so much later; none: ask again.
  std::optional<Nanos> then;
  IoTask task = IoTask::kStaging;
  AttemptEnd end = AttemptEnd::kStopped;
};

// What the io thread knows beside the record.
struct IoMemory {
  IoMemory();

  // What fails while the ranks work uses up no patience of the end.
  Retries staging, live, shipping, delivery;
  bool confirmed = false;  // after the delivery: the server has all events

  // Results of this piece of work.
  std::optional<absl::Status> staged, torch, shipped, delivered, asked;
  bool more = false;      // shipped: a file had more than one chunk
  bool complete = false;  // shipped: everything is acknowledged
  bool has_all = false;   // asked: the server's answer
  bool counted = false;   // the failure

  Retries& Of(IoTask task);
  void BeginPiece();
};

// What the io thread decides by, as it is at this moment.
struct IoView {
  AttemptState state = v1::AttemptStatus::STAGING;
  Wish wish;
  bool delivers = false;          // the artifact is this node's to deliver, and is not registered
  bool checkpoints_idle = false;  // none is left to register
  bool away = false;              // IsAway
  MonoTime now;
};

// The server will say the same next time.
bool IsFinal(const absl::Status& status);
// The server knows no such attempt or a newer epoch: nobody waits for what this one has to say.
bool IsDisowned(const absl::Status& status);

// DONE only once the server has, or never takes, all that was made; or nobody wants it.
IoStep DecideIo(const IoView& view, const IoMemory& memory);

// How a step went.
void Note(const IoStep& step, const absl::Status& result, const IoView& view, IoMemory& memory);

}  // namespace sft::worker
