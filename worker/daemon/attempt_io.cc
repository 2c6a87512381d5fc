// The io thread's part of an attempt: staging, shipping of logs and events, the artifact.

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "worker/daemon/artifact.h"
#include "worker/daemon/attempt.h"
#include "worker/daemon/event_file.h"
#include "worker/daemon/verdict.h"

namespace sft::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How soon new bytes of a log or an event are seen.
constexpr milliseconds kLiveInterval{150};
// While a last checkpoint is written: what is trained after it is trained again.
constexpr milliseconds kStoppingInterval{25};
constexpr seconds kIdleInterval{3600};  // Io is woken when something changes

// The server will say the same next time.
bool IsFinal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
         absl::IsNotFound(status) || absl::IsPermissionDenied(status) ||
         absl::IsAlreadyExists(status) || absl::IsUnimplemented(status);
}

// The server knows no such attempt or a newer epoch: nobody waits for what this one has to say.
bool IsDisowned(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsNotFound(status);
}

}  // namespace

Nanos Attempt::Io() {
  State state;
  {
    const MutexLock lock(mutex_);
    state = state_;
  }
  switch (state) {
    case v1::AttemptStatus::STAGING:
      return Stage();
    case v1::AttemptStatus::PREPARING:
    case v1::AttemptStatus::RUNNING:
    case v1::AttemptStatus::STOPPING:
      return ShipLive();
    case v1::AttemptStatus::FINISHING:
      return Finish();
    default:
      return kIdleInterval;
  }
}

absl::Status Attempt::StageOnce() {
  v1::Dispatch dispatch;
  {
    const MutexLock lock(mutex_);
    dispatch = record_.dispatch;
  }
  const int slots = static_cast<int>(services_.inventory.Slots().size());
  for (const int slot : dispatch.slots()) {
    if (slot < 0 || slot >= slots) {
      return Internal(fmt::format("the server placed a rank on slot {} of {}", slot, slots));
    }
  }
  SFT_ASSIGN_OR_RETURN(StagedJob staged,
                       services_.stager.Stage(dispatch, [this] { return Stopping(); }));
  const absl::StatusOr<std::string> torch = services_.torch_lib_dir();
  if (!torch.ok()) return Internal(Message(torch.status()));  // the node's fault, not the job's
  PortLease port;
  if (dispatch.first_rank() == 0) {
    SFT_ASSIGN_OR_RETURN(port, PortLease::Take(services_.setup.address));
  }
  const MutexLock lock(mutex_);
  staged_ = std::move(staged);
  torch_lib_dir_ = *torch;
  port_ = std::move(port);
  return absl::OkStatus();
}

Nanos Attempt::Stage() {
  const absl::Status staged = StageOnce();
  std::string stop_reason;
  {
    const MutexLock lock(mutex_);
    if (intent_ == v1::DesiredAttempt::RUN && interrupted_) return kIdleInterval;
    stop_reason = intent_reason_;
  }
  if (Stopping()) {
    Conclude(SimpleVerdict(v1::Verdict::NONE, "stopped", stop_reason, "", services_.setup.node));
    return Nanos(0);
  }
  // The server or the way to it is gone: what was fetched is kept.
  if (absl::IsUnavailable(staged) || absl::IsDeadlineExceeded(staged) ||
      absl::IsOutOfRange(staged)) {
    spdlog::warn("attempt {}: staging: {}; trying again", uid_, Message(staged));
    return backoff_.Next();
  }
  if (!staged.ok()) {
    Conclude(MakeStartVerdict(staged, services_.setup.node));
    return Nanos(0);
  }
  backoff_.Reset();
  Enter(v1::AttemptStatus::READY);
  return kIdleInterval;
}

Nanos Attempt::ShipLive() {
  const absl::StatusOr<Shipper::Progress> shipped = shipper_.ShipOnce(/*final=*/false);
  if (!shipped.ok()) {
    spdlog::debug("attempt {}: shipping: {}", uid_, Message(shipped.status()));
    return backoff_.Next();
  }
  backoff_.Reset();
  if (shipped->more) return Nanos(0);
  const MutexLock lock(mutex_);
  return state_ == v1::AttemptStatus::STOPPING ? kStoppingInterval : kLiveInterval;
}

Nanos Attempt::Finish() {
  bool abandoned = false;
  {
    const MutexLock lock(mutex_);
    if (interrupted_) return kIdleInterval;
    abandoned = abandoned_;
  }
  if (!abandoned) {
    const absl::StatusOr<Shipper::Progress> shipped = shipper_.ShipOnce(/*final=*/true);
    absl::Status status = shipped.status();
    if (shipped.ok()) {
      backoff_.Reset();
      if (!shipped->complete) return Nanos(0);
      if (!checkpoints_.Idle()) {
        if (checkpoints_.End()) services_.on_change();
        return kLiveInterval;
      }
      status = Deliver();
    }
    if (!status.ok() && !IsDisowned(status)) {
      spdlog::warn("attempt {}: finishing: {}; trying again", uid_, Message(status));
      return backoff_.Next();
    }
    if (!status.ok()) spdlog::warn("attempt {}: the server disowns it: {}", uid_, Message(status));
  }
  {
    const MutexLock lock(mutex_);
    record_.done = true;
  }
  Save();
  Enter(v1::AttemptStatus::DONE);
  return kIdleInterval;
}

absl::Status Attempt::Deliver() {
  AttemptRecord record;
  {
    const MutexLock lock(mutex_);
    record = record_;
  }
  // Rank 0 writes the artifact, whatever node it is on.
  if (record.committed || record.dispatch.first_rank() != 0 ||
      record.verdict.code() != "succeeded") {
    return absl::OkStatus();
  }
  const absl::StatusOr<channel::ArtifactEvent> artifact = FindArtifact(dir_);
  absl::Status delivered = artifact.status();
  if (artifact.ok()) {
    delivered = DeliverArtifact(*artifact, uid_, epoch_, services_.setup.node, services_.server,
                                [this] { return Stopping(); });
  }
  if (delivered.ok()) {
    {
      const MutexLock lock(mutex_);
      record_.committed = true;
    }
    Save();
    return delivered;
  }
  const bool stopped = absl::IsAborted(delivered) && Stopping();
  if (!stopped && !IsFinal(delivered)) return delivered;
  // The training succeeded, the job did not: what it was for is not there.
  const MutexLock lock(mutex_);
  if (interrupted_) return delivered;
  record_.verdict =
      stopped
          ? SimpleVerdict(v1::Verdict::NONE, "stopped", intent_reason_, "", services_.setup.node)
          : SimpleVerdict(
                v1::Verdict::INFRASTRUCTURE, "artifact_lost",
                fmt::format("the artifact could not be delivered: {}", Message(delivered)),
                "look at the logs of rank 0 and of the worker", services_.setup.node);
  return absl::OkStatus();
}

void Attempt::FindCheckpoints() {
  std::string path;
  {
    const MutexLock lock(mutex_);
    path = fmt::format("{}/rank-{}.events", dir_, record_.dispatch.first_rank());
  }
  const absl::Status read = ReadEventFile(path, [this](const channel::Event& event) {
    const auto* checkpoint = std::get_if<channel::CheckpointEvent>(&event.body);
    if (checkpoint != nullptr) checkpoints_.Add(*checkpoint);
  });
  if (!read.ok() && !absl::IsNotFound(read)) spdlog::warn("{}", Message(read));
}

void Attempt::OnCheckpointRegistered(int64_t step) {
  {
    const MutexLock lock(mutex_);
    record_.checkpoint_step = std::max(record_.checkpoint_step, step);
  }
  Save();
  // The server waits for it before it names the next.
  if (!checkpoints_.whole()) services_.on_change();
}

void Attempt::OnEvent(int rank, const channel::Event& event) {
  const auto* checkpoint = std::get_if<channel::CheckpointEvent>(&event.body);
  if (checkpoint != nullptr) {
    checkpoints_.Add(*checkpoint);
    services_.on_change();
    return;
  }
  const MutexLock lock(mutex_);
  if (const auto* progress = std::get_if<channel::ProgressEvent>(&event.body)) {
    progress_.set_phase(fmt::format("{} {}/{}", progress->phase, progress->done, progress->total));
  }
  if (rank != 0) return;
  if (const auto* ready = std::get_if<channel::ReadyEvent>(&event.body)) {
    progress_.set_phase("");
    progress_.set_total_steps(ready->total_steps);
    progress_.set_trainable_parameters(ready->trainable_parameters);
    progress_.set_total_parameters(ready->total_parameters);
  } else if (const auto* step = std::get_if<channel::StepEvent>(&event.body)) {
    progress_.set_step(step->step);
    progress_.set_total_steps(step->total_steps);
    progress_.set_loss(step->loss);
    progress_.set_tokens_per_second(step->tokens_per_second);
    progress_.set_gpu_memory_bytes(step->gpu_memory_bytes);
    progress_.set_mfu(step->mfu);
    progress_.set_of_limit(step->of_limit);
    progress_.set_eta_seconds(step->seconds * static_cast<double>(step->total_steps - step->step));
  } else if (const auto* eval = std::get_if<channel::EvalEvent>(&event.body)) {
    progress_.set_val_loss(eval->loss);
    progress_.set_has_val_loss(true);
  }
}

}  // namespace sft::worker
