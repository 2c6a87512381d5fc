#include "worker/daemon/attempt.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "common/io/file.h"
#include "worker/daemon/artifact.h"
#include "worker/daemon/launch_plan.h"
#include "worker/daemon/shim_client.h"
#include "worker/daemon/verdict.h"

namespace sft::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How soon new bytes of a log or an event are seen.
constexpr milliseconds kLiveInterval{150};
constexpr seconds kIdleInterval{3600};  // Io is woken when something changes
constexpr milliseconds kFirstBackoff{250};
constexpr seconds kMaxBackoff{10};
constexpr seconds kRenewInterval{5};
// From the end of the last process to the point where memory that is still held is a fault.
constexpr seconds kMemoryPatience{30};
constexpr int64_t kMemorySlack = 512 << 20;

std::vector<Shipper::Source> Sources(const v1::Dispatch& dispatch) {
  std::vector<Shipper::Source> sources{{-1, "prepare"}};
  for (int i = 0; i < dispatch.slots_size(); ++i) {
    const int rank = dispatch.first_rank() + i;
    sources.push_back({rank, fmt::format("rank-{}", rank)});
  }
  return sources;
}

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

Attempt::Attempt(AttemptRecord record, const AttemptServices& services)
    : uid_(record.uid),
      epoch_(record.epoch),
      dir_(services.setup.AttemptDir(record.uid)),
      services_(services),
      renewed_at_(services.clock.Mono()),
      shipper_({record.uid, record.epoch, services.setup.node, dir_}, Sources(record.dispatch),
               services.server,
               [this](int rank, const channel::Event& event) { OnEvent(rank, event); }),
      backoff_(kFirstBackoff, kMaxBackoff),
      record_(std::move(record)) {
  const MutexLock lock(mutex_);
  if (record_.done) {
    state_ = v1::AttemptStatus::DONE;
  } else if (record_.has_verdict()) {
    state_ = v1::AttemptStatus::FINISHING;
  } else if (record_.launched) {
    state_ = v1::AttemptStatus::PREPARING;
  }
}

void Attempt::Direct(const v1::DesiredAttempt& desired) {
  const MutexLock lock(mutex_);
  // A stop is never taken back.
  if (intent_ == v1::DesiredAttempt::RUN &&
      desired.intent() != v1::DesiredAttempt::INTENT_UNSPECIFIED) {
    intent_ = desired.intent();
    intent_reason_ = desired.reason();
  }
  if (desired.intent() == v1::DesiredAttempt::FORGET) abandoned_ = true;
  if (!desired.rendezvous().empty()) desired_rendezvous_ = desired.rendezvous();
}

void Attempt::Abandon(const std::string& reason) {
  const MutexLock lock(mutex_);
  abandoned_ = true;
  if (intent_ != v1::DesiredAttempt::RUN) return;
  intent_ = v1::DesiredAttempt::STOP;
  intent_reason_ = reason;
}

v1::AttemptStatus Attempt::Status() const {
  const MutexLock lock(mutex_);
  v1::AttemptStatus status;
  status.set_attempt_uid(uid_);
  status.set_epoch(epoch_);
  status.set_state(state_);
  status.set_reason(reason_);
  status.set_stuck(stuck_);
  if (state_ >= v1::AttemptStatus::READY) status.set_rendezvous(port_.endpoint());
  if (state_ >= v1::AttemptStatus::FINISHING) *status.mutable_verdict() = record_.verdict;
  *status.mutable_progress() = progress_;
  return status;
}

bool Attempt::Forgettable() const {
  const MutexLock lock(mutex_);
  return abandoned_ && state_ == v1::AttemptStatus::DONE;
}

bool Attempt::HasProcesses() const {
  const MutexLock lock(mutex_);
  return state_ >= v1::AttemptStatus::PREPARING && state_ <= v1::AttemptStatus::STOPPING;
}

bool Attempt::Stopping() const {
  const MutexLock lock(mutex_);
  return interrupted_ || intent_ != v1::DesiredAttempt::RUN;
}

void Attempt::Interrupt() {
  const MutexLock lock(mutex_);
  interrupted_ = true;
}

void Attempt::Enter(State state, const std::string& reason) {
  {
    const MutexLock lock(mutex_);
    if (state_ == state && reason_ == reason) return;
    state_ = state;
    reason_ = reason;
  }
  spdlog::info("attempt {}: {}{}{}", uid_, v1::AttemptStatus::State_Name(state),
               reason.empty() ? "" : ": ", reason);
  services_.on_change();
}

void Attempt::Save() {
  AttemptRecord record;
  {
    const MutexLock lock(mutex_);
    record = record_;
  }
  // A full disk: a restart of the worker would look at the shim's files once more, nothing worse.
  const absl::Status saved = SaveRecord(record, dir_);
  if (!saved.ok()) spdlog::warn("attempt {}: {}", uid_, Message(saved));
}

void Attempt::Conclude(const v1::Verdict& verdict) {
  {
    const MutexLock lock(mutex_);
    record_.verdict = verdict;
    port_.Release();
  }
  Save();
  Enter(v1::AttemptStatus::FINISHING, verdict.message());
}

// ---- control thread ----

void Attempt::Control(bool server_alive) {
  State state;
  std::string rendezvous;
  std::string reason;
  {
    const MutexLock lock(mutex_);
    state = state_;
    rendezvous = desired_rendezvous_;
    reason = intent_reason_;
  }
  if (state == v1::AttemptStatus::READY) {
    if (Stopping()) {
      Conclude(SimpleVerdict(v1::Verdict::NONE, "stopped", reason, "", services_.setup.node));
    } else if (!rendezvous.empty()) {
      Launch(rendezvous);
    }
  } else if (HasProcesses()) {
    Watch(server_alive);
  }
}

absl::Status Attempt::WriteLaunchFiles(const std::string& rendezvous) {
  AttemptRecord record;
  StagedJob staged;
  std::string torch;
  {
    const MutexLock lock(mutex_);
    record = record_;
    staged = *staged_;
    torch = torch_lib_dir_;
  }
  const LaunchFiles files = PlanLaunch({uid_, epoch_, record.dispatch, staged, rendezvous, torch},
                                       services_.setup, services_.inventory);
  SFT_RETURN_IF_ERROR(io::MakeDirs(services_.setup.data_dir + "/run"));
  SFT_RETURN_IF_ERROR(io::MakeDirs(files.rank.cache_dir));
  // What an earlier attempt of the job left there must not be taken for this one's.
  if (record.dispatch.first_rank() == 0) SFT_RETURN_IF_ERROR(io::RemoveAll(files.rank.output_dir));
  SFT_RETURN_IF_ERROR(io::MakeDirs(files.rank.output_dir));
  SFT_RETURN_IF_ERROR(io::WriteFileAtomic(dir_ + "/launch.json", ToJson(files.rank)));
  SFT_RETURN_IF_ERROR(io::WriteFileAtomic(dir_ + "/shim.json", ToJson(files.shim)));
  const MutexLock lock(mutex_);
  record_.launched = true;
  for (const int slot : record.dispatch.slots()) {
    record_.memory_before.push_back(services_.inventory.MemoryOf(slot).used_bytes);
  }
  port_.Release();
  // Without the record on disk a restarted worker would start the ranks a second time.
  return SaveRecord(record_, dir_);
}

void Attempt::Launch(const std::string& rendezvous) {
  absl::Status started = WriteLaunchFiles(rendezvous);
  if (started.ok()) started = services_.shims.Start(dir_ + "/shim.json");
  if (!started.ok()) {
    v1::Verdict verdict = MakeStartVerdict(started, services_.setup.node);
    verdict.set_domain(v1::Verdict::INFRASTRUCTURE);
    if (verdict.code() == "bad_input") verdict.set_code("start_failed");
    verdict.set_advice(fmt::format("look at the worker's log on node {}", services_.setup.node));
    return Conclude(verdict);
  }
  Enter(v1::AttemptStatus::PREPARING);
}

absl::StatusOr<channel::ShimStatus> Attempt::ReadShimStatus() {
  SFT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(dir_ + "/status.json"));
  return channel::ParseShimStatus(text);
}

void Attempt::Watch(bool server_alive) {
  if (gone_verdict_) return CheckMemoryIsBack();
  absl::StatusOr<channel::ShimStatus> status = ReadShimStatus();
  if (absl::IsNotFound(status.status())) {
    // The worker died between its record and the shim's start; the shim's lock keeps a second out.
    const absl::Status started = services_.shims.Start(dir_ + "/shim.json");
    if (!started.ok()) ProcessesGone(MakeStartVerdict(started, services_.setup.node));
    return;
  }
  if (status.ok() && status->state != "exited" && !services_.shims.Alive(*status)) {
    status = ReadShimStatus();  // it may have ended between the two looks
    if (status.ok() && status->state != "exited") {
      return ProcessesGone(SimpleVerdict(
          v1::Verdict::INFRASTRUCTURE, "shim_lost",
          "the shim of this attempt died and its ranks with it",
          "see dmesg on the node, or its boot log if it was restarted", services_.setup.node));
    }
  }
  if (!status.ok()) {
    return ProcessesGone(SimpleVerdict(v1::Verdict::INFRASTRUCTURE, "shim_lost",
                                       std::string(Message(status.status())),
                                       "look at the node's disk", services_.setup.node));
  }
  shim_ = *std::move(status);
  if (shim_.state == "exited") {
    const channel::ShimStatus::Process* blamed = FindBlamed(shim_);
    return ProcessesGone(MakeVerdict(
        shim_, blamed ? ReadTraces(dir_, blamed->name) : ProcessTraces{}, services_.setup.node));
  }
  const std::string socket_path = fmt::format("{}/run/{}.sock", services_.setup.data_dir, uid_);
  if (Stopping() && !stop_sent_) {
    std::string reason;
    {
      const MutexLock lock(mutex_);
      reason = interrupted_ && intent_ == v1::DesiredAttempt::RUN ? "" : intent_reason_;
      // Only the server's word stops ranks; an interrupted worker leaves them running.
      if (intent_ == v1::DesiredAttempt::RUN) return;
    }
    stop_sent_ =
        services_.shims.Ask(socket_path, {"stop", reason.empty() ? "stop requested" : reason}).ok();
  } else if (server_alive && services_.clock.Mono() - renewed_at_ >= kRenewInterval) {
    if (services_.shims.Ask(socket_path, {"renew", ""}).ok()) renewed_at_ = services_.clock.Mono();
  }
  if (shim_.state == "preparing") Enter(v1::AttemptStatus::PREPARING);
  if (shim_.state == "running") Enter(v1::AttemptStatus::RUNNING);
  if (shim_.state == "stopping") Enter(v1::AttemptStatus::STOPPING, shim_.reason);
}

void Attempt::ProcessesGone(const v1::Verdict& verdict) {
  gone_verdict_ = verdict;
  gone_at_ = services_.clock.Mono();
  CheckMemoryIsBack();
}

void Attempt::CheckMemoryIsBack() {
  AttemptRecord record;
  {
    const MutexLock lock(mutex_);
    record = record_;
  }
  std::string held;
  for (int i = 0; i < record.dispatch.slots_size(); ++i) {
    const int slot = record.dispatch.slots(i);
    if (!services_.inventory.IsGpu(slot)) continue;
    const Inventory::Memory memory = services_.inventory.MemoryOf(slot);
    const int64_t before =
        i < static_cast<int>(record.memory_before.size()) ? record.memory_before[i] : 0;
    if (memory.at <= *gone_at_) {
      held = "waiting for a reading of the GPUs' memory";
    } else if (memory.used_bytes > before + kMemorySlack) {
      held = fmt::format("GPU {} still holds {:.1f} GB although all processes are gone", slot,
                         static_cast<double>(memory.used_bytes) / 1e9);
    }
  }
  if (held.empty()) {
    {
      const MutexLock lock(mutex_);
      stuck_ = false;
    }
    return Conclude(*gone_verdict_);
  }
  services_.inventory.AskForRefresh();
  State state;
  {
    const MutexLock lock(mutex_);
    stuck_ = services_.clock.Mono() - *gone_at_ > kMemoryPatience;
    state = state_;
  }
  // Not STOPPING: that would tell the server that this node ends the gang, and the ranks may all
  // have succeeded.
  Enter(state, held);
}

// ---- io thread ----

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
  return shipped->more ? Nanos(0) : Nanos(kLiveInterval);
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

void Attempt::OnEvent(int rank, const channel::Event& event) {
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
