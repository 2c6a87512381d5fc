// The io thread's part of an attempt: staging, shipping of logs and events, the artifact.

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/rpc/progress.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/verdict.h"
#include "worker/shipping/artifact.h"
#include "worker/shipping/event_file.h"
#include "worker/transfer/blob_file.h"

namespace sft::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How soon new bytes of a log or an event are seen.
constexpr milliseconds kLiveInterval{150};
// While a last checkpoint is written: what is trained after it is trained again.
constexpr milliseconds kStoppingInterval{25};
constexpr seconds kIdleInterval{3600};  // Io is woken when something changes
// Longer than the longest pause between two words of a server that is there.
constexpr seconds kServerAway{90};

// In a row, until the job's history says it.
constexpr int kFailuresToldOf = 5;

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
  bool spoke = false;
  {
    const MutexLock lock(mutex_);
    state = state_;
    spoke = std::exchange(server_spoke_, false);
  }
  // It is there again: no need to wait longer.
  if (spoke) {
    for (Retries* each : {&staging_, &live_shipping_, &shipping_, &delivery_}) each->Hurry();
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
  absl::StatusOr<PortLease> port = PortLease();
  if (dispatch.first_rank() == 0) port = PortLease::Take(services_.setup.address);
  if (!port.ok()) return Internal(Message(port.status()));  // the node's fault, not the job's
  const MutexLock lock(mutex_);
  staged_ = std::move(staged);
  port_ = *std::move(port);
  return absl::OkStatus();
}

bool Attempt::ServerIsAway() const {
  const MutexLock lock(mutex_);
  return heard_ == MonoTime{} || services_.clock.Mono() - heard_ > kServerAway;
}

Nanos Attempt::TryAgain(Retries& retries, std::string_view what, const absl::Status& why) {
  const MonoTime now = services_.clock.Mono();
  retries.Failed(now, ServerIsAway());
  const std::string text = retries.Text(what, why, now);
  // What passes by itself at once, as when the server is restarted, is no news for the job's owner.
  if (retries.failures() == kFailuresToldOf) {
    Warn(text);
  } else {
    spdlog::log(retries.failures() == 1 ? spdlog::level::warn : spdlog::level::debug,
                "attempt {}: {}", uid_, text);
  }
  {
    const MutexLock lock(mutex_);
    retrying_ = text;
  }
  services_.on_change();
  return retries.Wait(now);
}

void Attempt::Succeeded(Retries& retries) {
  if (retries.failures() == 0) return;
  retries.Succeeded();
  {
    const MutexLock lock(mutex_);
    if (retrying_.empty()) return;
    retrying_.clear();
  }
  services_.on_change();
}

Nanos Attempt::EndStaging(const absl::Status& why) {
  Conclude(MakeStagingVerdict(why, services_.setup.node));
  return Nanos(0);
}

Nanos Attempt::Stage() {
  // Whatever changes elsewhere wakes this thread.
  const Nanos wait = staging_.Wait(services_.clock.Mono());
  if (wait > Nanos(0) && !Stopping()) return wait;
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
  if (IsPassing(staged)) {
    if (HasProgressed(staged)) staging_.Succeeded();
    const Nanos next = TryAgain(staging_, "staging", staged);
    if (!staging_.Enough()) return next;
    return EndStaging(
        Internal(fmt::format("staging failed {}: {}", staging_.Counts(), Message(staged))));
  }
  if (!staged.ok()) return EndStaging(staged);
  const absl::StatusOr<std::string> torch = services_.torch_lib_dir();
  if (!torch.ok()) {
    Conclude(SimpleVerdict(
        v1::Verdict::INFRASTRUCTURE, "ranks_cannot_start", std::string(Message(torch.status())),
        fmt::format("look at node {}", services_.setup.node), services_.setup.node));
    return Nanos(0);
  }
  {
    const MutexLock lock(mutex_);
    torch_lib_dir_ = *torch;
  }
  Succeeded(staging_);
  Enter(v1::AttemptStatus::READY);
  return kIdleInterval;
}

Nanos Attempt::ShipLive() {
  {
    const MutexLock lock(mutex_);
    if (abandoned_) return kIdleInterval;
  }
  const Nanos wait = live_shipping_.Wait(services_.clock.Mono());
  if (wait > Nanos(0)) return wait;
  const absl::StatusOr<Shipper::Progress> shipped = shipper_.ShipOnce(/*final=*/false);
  if (!shipped.ok()) return TryAgain(live_shipping_, "sending logs and events", shipped.status());
  Succeeded(live_shipping_);
  if (shipped->more) return Nanos(0);
  const MutexLock lock(mutex_);
  return state_ == v1::AttemptStatus::STOPPING ? kStoppingInterval : kLiveInterval;
}

void Attempt::LeaveOutUnshipped(const absl::Status& why) {
  const std::vector<std::string> left_out = shipper_.GiveUp();
  const MutexLock lock(mutex_);
  for (const std::string& each : left_out) {
    spdlog::error("attempt {}: {} is left out: {}", uid_, each, Message(why));
    record_.verdict.add_evidence(
        fmt::format("the server did not take {} ({}): {}", each, shipping_.Counts(), Message(why)));
  }
}

Nanos Attempt::Finish() {
  const MonoTime now = services_.clock.Mono();
  bool abandoned = false;
  bool kept = false;
  {
    const MutexLock lock(mutex_);
    if (interrupted_) return kIdleInterval;
    abandoned = abandoned_;
    kept = kept_;
  }
  if (!abandoned) {
    const Nanos wait = std::max(shipping_.Wait(now), delivery_.Wait(now));
    if (wait > Nanos(0)) return wait;
    const absl::StatusOr<Shipper::Progress> shipped = shipper_.ShipOnce(/*final=*/true);
    if (!shipped.ok() && !IsDisowned(shipped.status())) {
      const Nanos next =
          TryAgain(shipping_, "sending the rest of logs and events", shipped.status());
      if (!shipping_.Enough() && !IsFinal(shipped.status())) return next;
      LeaveOutUnshipped(shipped.status());
      Succeeded(shipping_);
      return Nanos(0);
    }
    absl::Status status = shipped.status();
    if (shipped.ok()) {
      Succeeded(shipping_);
      if (!shipped->complete) return Nanos(0);
      if (!checkpoints_.Idle()) {
        if (checkpoints_.End()) services_.on_change();
        return kLiveInterval;
      }
      status = Deliver();
      // The delivery may have taken hours, in which a server may lose what it had.
      if (status.ok() && !confirmed_) {
        const absl::StatusOr<bool> has_all = shipper_.Confirm();
        confirmed_ = has_all.ok() || IsFinal(has_all.status()) || delivery_.Enough();
        if (has_all.ok() && !*has_all) return Nanos(0);
        if (!confirmed_) status = has_all.status();
      }
    }
    if (!status.ok() && !IsDisowned(status)) return TryAgain(delivery_, "delivery", status);
    if (!status.ok()) spdlog::warn("attempt {}: the server disowns it: {}", uid_, Message(status));
    Succeeded(delivery_);
  }
  if (!kept) {
    {
      const MutexLock lock(mutex_);
      record_.done = true;
    }
    Save();
  }
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
  const absl::StatusOr<channel::ArtifactEvent> artifact = FindArtifact(dir_, rank_user_);
  absl::Status delivered = artifact.status();
  if (artifact.ok()) {
    delivered = DeliverArtifact(
        *artifact, uid_, epoch_, services_.setup.node, services_.server,
        [this] { return Stopping(); }, rank_user_);
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
  if (!stopped && !IsFinal(delivered) && !delivery_.Enough()) return delivered;
  // The training succeeded, the job did not: what it was for is not there.
  const MutexLock lock(mutex_);
  if (interrupted_) return delivered;
  record_.verdict =
      stopped
          ? SimpleVerdict(v1::Verdict::NONE, "stopped", intent_reason_, "", services_.setup.node)
          : SimpleVerdict(
                v1::Verdict::INFRASTRUCTURE, "artifact_lost",
                fmt::format("the artifact could not be delivered: {}", Message(delivered)),
                "look at the logs of rank 0 and of the worker, and at the server's disk",
                IsFinal(delivered) ? services_.setup.node : "");
  return absl::OkStatus();
}

void Attempt::FindCheckpoints() {
  std::string path;
  {
    const MutexLock lock(mutex_);
    path = fmt::format("{}/rank-{}.events", dir_, record_.dispatch.first_rank());
  }
  const RankRights rights(rank_user_);
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
    rpc::Advance(MetricOf(*step), progress_);
  } else if (const auto* eval = std::get_if<channel::EvalEvent>(&event.body)) {
    rpc::Advance(MetricOf(*eval), progress_);
  }
}

}  // namespace sft::worker
