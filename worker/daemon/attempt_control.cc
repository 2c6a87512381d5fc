// The control thread's part of an attempt: starts, watches and stops its shim.

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/io/file.h"
#include "worker/daemon/attempt.h"
#include "worker/daemon/launch_plan.h"
#include "worker/daemon/shim_client.h"
#include "worker/daemon/verdict.h"

namespace sft::worker {
namespace {

using std::chrono::seconds;

constexpr seconds kRenewInterval{5};
// From the end of the last process to the point where memory that is still held is a fault.
constexpr seconds kMemoryPatience{30};
constexpr int64_t kMemorySlack = 512 << 20;

}  // namespace

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
  SFT_RETURN_IF_ERROR(io::MakeDirs(files.rank.checkpoint_dir));
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
  if (started.ok()) started = StartShim(services_.setup.shim_binary, dir_ + "/shim.json");
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
    const absl::Status started = StartShim(services_.setup.shim_binary, dir_ + "/shim.json");
    if (!started.ok()) ProcessesGone(MakeStartVerdict(started, services_.setup.node));
    return;
  }
  if (status.ok() && status->state != "exited" && !ShimAlive(*status)) {
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
    if (WaitsForLastCheckpoint(socket_path)) return;
    stop_sent_ = AskShim(socket_path, {"stop", reason.empty() ? "stop requested" : reason}).ok();
  } else if (server_alive && services_.clock.Mono() - renewed_at_ >= kRenewInterval) {
    if (AskShim(socket_path, {"renew", ""}).ok()) renewed_at_ = services_.clock.Mono();
  }
  AskForCheckpoints(socket_path);
  if (shim_.state == "preparing") Enter(v1::AttemptStatus::PREPARING);
  if (shim_.state == "running") Enter(v1::AttemptStatus::RUNNING);
  if (shim_.state == "stopping") Enter(v1::AttemptStatus::STOPPING, shim_.reason);
}

void Attempt::AskForCheckpoints(const std::string& socket_path) {
  int64_t wanted = 0;
  {
    const MutexLock lock(mutex_);
    if (checkpoints_wanted_ <= record_.checkpoints_asked) return;
    wanted = checkpoints_wanted_;
  }
  if (shim_.state != "running" || !AskShim(socket_path, {"checkpoint", ""}).ok()) return;
  {
    const MutexLock lock(mutex_);
    record_.checkpoints_asked = wanted;
  }
  Save();
}

bool Attempt::WaitsForLastCheckpoint(const std::string& socket_path) {
  {
    const MutexLock lock(mutex_);
    if (!checkpoint_first_ || abandoned_ || shim_.state != "running") return false;
  }
  const MonoTime now = services_.clock.Mono();
  if (!last_asked_at_) {
    last_asked_after_ = checkpoints_.newest();
    last_asked_at_ = now;
    if (!AskShim(socket_path, {"checkpoint", ""}).ok()) return false;
  }
  const Nanos grace = std::chrono::duration_cast<Nanos>(
      std::chrono::duration<double>(services_.setup.grace_seconds));
  if (checkpoints_.newest() > last_asked_after_ || now - *last_asked_at_ >= grace) return false;
  Enter(v1::AttemptStatus::STOPPING, "writing a checkpoint before the end");
  return true;
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

}  // namespace sft::worker
