// The control thread's part of an attempt: starts, watches and stops its shim.

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/base/bytes.h"
#include "common/io/file.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/launch_plan.h"
#include "worker/attempt/shim_client.h"
#include "worker/attempt/verdict.h"
#include "worker/channel/event.h"
#include "worker/node/data_cleaning.h"
#include "worker/transfer/checkpoint_folder.h"

namespace sft::worker {
namespace {

using std::chrono::seconds;

// From the end of the last process to the point where memory that is still held is a fault.
constexpr seconds kMemoryPatience{30};
constexpr int64_t kMemorySlack = 512 << 20;
// From a start that nobody answered in time to the next.
constexpr seconds kStartPause{30};
// From the first time that a shim does not answer to the point where that is told.
constexpr seconds kShimPatience{60};
constexpr int64_t kMaxStatusBytes = 16 << 20;

}  // namespace

void Attempt::Control(MonoTime heard) {
  State state;
  std::string rendezvous;
  std::string reason;
  {
    const MutexLock lock(mutex_);
    state = state_;
    rendezvous = desired_rendezvous_;
    reason = intent_reason_;
    heard_ = heard;
  }
  if (state == v1::AttemptStatus::READY) {
    if (Stopping()) {
      Conclude(SimpleVerdict(v1::Verdict::NONE, "stopped", reason, "", services_.setup.node));
    } else if (!rendezvous.empty()) {
      Launch(rendezvous, heard);
    }
  } else if (HasProcesses()) {
    Watch(heard);
  }
}

bool Attempt::Fenced(MonoTime heard) const {
  return fencing_ > Nanos(0) && services_.clock.Mono() - heard >= fencing_;
}

absl::Status Attempt::WriteLaunchFiles(const std::string& rendezvous, MonoTime heard) {
  AttemptRecord record;
  StagedJob staged;
  std::string torch;
  {
    const MutexLock lock(mutex_);
    record = record_;
    staged = *staged_;
    torch = torch_lib_dir_;
  }
  LaunchFiles files = PlanLaunch({uid_, epoch_, record.dispatch, staged, rendezvous, torch},
                                 services_.setup, services_.inventory);
  using Seconds = std::chrono::duration<double>;
  files.shim.fencing_seconds = Seconds(fencing_).count();
  files.shim.fencing_age = Seconds(services_.clock.Mono() - heard).count();
  SFT_RETURN_IF_ERROR(MakeRankFolders(files.rank, record.dispatch.first_rank() == 0));
  SFT_RETURN_IF_ERROR(io::WriteFileAtomic(dir_ + "/launch.json", ToJson(files.rank)));
  SFT_RETURN_IF_ERROR(LetRanksRead(dir_ + "/launch.json", rank_user_));
  SFT_RETURN_IF_ERROR(io::WriteFileAtomic(dir_ + "/shim.json", ToJson(files.shim)));
  SFT_RETURN_IF_ERROR(LetRanksRead(dir_ + "/shim.json", rank_user_));
  const MutexLock lock(mutex_);
  record_.launched = true;
  record_.rank_uid = rank_user_ ? rank_user_->uid : 0;
  record_.rank_gid = rank_user_ ? rank_user_->gid : 0;
  record_.launched_ns = services_.clock.Mono().time_since_epoch().count();
  record_.oom_kills_before = CgroupOomKills().value_or(0);
  for (const int slot : record.dispatch.slots()) {
    record_.memory_before.push_back(services_.inventory.MemoryOf(slot).used_bytes);
  }
  port_.Release();
  // Without the record on disk a restarted worker would start the ranks a second time.
  return SaveRecord(record_, dir_);
}

absl::Status Attempt::MakeRankFolders(const channel::RankLaunch& launch, bool delivers) {
  const NodeSetup& setup = services_.setup;
  SFT_RETURN_IF_ERROR(LetRanksWrite(dir_, rank_user_));
  SFT_RETURN_IF_ERROR(LetRanksWrite(setup.data_dir + "/run", rank_user_));
  if (!setup.has_shared) SFT_RETURN_IF_ERROR(OpenCheckpointFolder(job_id_, setup));
  const RankRights rights(rank_user_);
  SFT_RETURN_IF_ERROR(io::MakeDirs(launch.cache_dir));
  // What an earlier attempt of the job left there must not be taken for this one's.
  if (delivers) SFT_RETURN_IF_ERROR(io::RemoveAll(launch.output_dir));
  SFT_RETURN_IF_ERROR(io::MakeDirs(launch.output_dir));
  return io::MakeDirs(launch.checkpoint_dir);
}

void Attempt::Launch(const std::string& rendezvous, MonoTime heard) {
  // The server may have placed the gang elsewhere by now; when it speaks again it says so.
  if (Fenced(heard)) return;
  absl::Status started = WriteLaunchFiles(rendezvous, heard);
  if (started.ok()) started = StartShim();
  if (!started.ok()) {
    return Conclude(MakeStartVerdict(started, services_.setup.node));
  }
  Enter(v1::AttemptStatus::PREPARING);
}

absl::Status Attempt::StartShim() {
  const MonoTime now = services_.clock.Mono();
  if (now < start_again_at_) return absl::OkStatus();
  const absl::Status started = services_.shims.Start(dir_ + "/shim.json");
  if (absl::IsUnknown(started)) {
    // Each try keeps the other attempts waiting.
    start_again_at_ = services_.clock.Mono() + kStartPause;
    Warn(fmt::format("{}; it may have started: going on as if it had", Message(started)));
    return absl::OkStatus();
  }
  return absl::IsAlreadyExists(started) ? absl::OkStatus() : started;
}

absl::StatusOr<channel::ShimStatus> Attempt::ReadShimStatus() {
  const absl::StatusOr<std::string> text = [&] {
    const RankRights rights(rank_user_);
    return io::ReadFile(dir_ + "/status.json", kMaxStatusBytes, io::Links::kRefuse);
  }();
  if (text.ok()) return channel::ParseShimStatus(*text);
  // A shim that found no room for the file still says what it would write.
  const absl::StatusOr<channel::Answer> answer = AskShim({.command = "status"});
  if (answer.ok() && answer->ok) return answer->status;
  return text.status();
}

void Attempt::WithoutStatus(const absl::Status& status, MonoTime heard) {
  if (absl::IsPermissionDenied(status)) {
    // That says nothing of the processes, and whoever runs as the ranks' user can bring it about.
    SetSilent(true, fmt::format("what its shim writes cannot be read ({})", Message(status)));
    return Enter(v1::AttemptStatus::PREPARING, silence_);
  }
  if (!absl::IsNotFound(status)) {
    return ProcessesGone(SimpleVerdict(v1::Verdict::INFRASTRUCTURE, "shim_lost",
                                       std::string(Message(status)), "look at the node's disk",
                                       services_.setup.node));
  }
  // The worker died between its record and the shim's start, or the start took too long; the shim's
  // lock keeps a second out. One that is there and does not speak (it is starting, or stopped) may
  // have living ranks. How old its launch file is does not matter to the fencing limit: the server
  // has to have been heard of in this life.
  if (heard == MonoTime{} || Fenced(heard)) return;
  SetSilent(true, "its shim was started and says nothing");
  Enter(v1::AttemptStatus::PREPARING, silence_);
  const absl::Status started = StartShim();
  if (!started.ok()) ProcessesGone(MakeStartVerdict(started, services_.setup.node));
}

void Attempt::Watch(MonoTime heard) {
  if (gone_verdict_) return CheckMemoryIsBack();
  absl::StatusOr<channel::ShimStatus> status = ReadShimStatus();
  if (status.ok() && status->state != "exited" && !services_.shims.Alive(*status)) {
    status = ReadShimStatus();  // it may have ended between the two looks
    if (status.ok() && status->state != "exited") {
      return ProcessesGone(SimpleVerdict(
          v1::Verdict::INFRASTRUCTURE, "shim_lost",
          "the shim of this attempt died and its ranks with it",
          "see dmesg on the node, or its boot log if it was restarted", services_.setup.node));
    }
  }
  if (!status.ok()) return WithoutStatus(status.status(), heard);
  shim_ = *std::move(status);
  if (shim_.state == "exited") return ShimEnded();
  if (!Stopping()) SetSilent(false, "");
  SteerShim(heard);
  if (shim_.state == "running") LookAtRanks();
  if (shim_.state == "preparing") Enter(v1::AttemptStatus::PREPARING, silence_);
  if (shim_.state == "running" && !last_asked_at_) Enter(v1::AttemptStatus::RUNNING, silence_);
  if (shim_.state == "stopping") Enter(v1::AttemptStatus::STOPPING, shim_.reason);
}

void Attempt::SetSilent(bool silent, const std::string& what) {
  const MonoTime now = services_.clock.Mono();
  if (!silent) silent_since_.reset();
  if (silent && !silent_since_) silent_since_ = now;
  const bool long_enough = silent && now - *silent_since_ >= kShimPatience;
  silence_ = long_enough ? what + ": look at the sft-shim of this attempt on the node" : "";
  const MutexLock lock(mutex_);
  stuck_ = long_enough;
}

void Attempt::ShimEnded() {
  // A worker that was not there finds the end later than it came.
  const WallTime now = services_.clock.Wall();
  const WallTime ended = std::min(now, LastUse(dir_ + "/status.json").value_or(now));
  {
    const MutexLock lock(mutex_);
    record_.ended_us = UnixMicros(ended);
  }
  ProcessesGone(JudgeEnd());
}

v1::Verdict Attempt::JudgeEnd() {
  const RankRights rights(rank_user_);
  v1::Verdict verdict = MakeVerdict(shim_, ReadAllTraces(dir_, shim_), services_.setup.node);
  if (shim_.cause == "watch") {
    const MutexLock lock(mutex_);
    if (!record_.finding.code().empty()) verdict = record_.finding;
  } else if (verdict.domain() != v1::Verdict::NONE) {
    watch_.AddTraces(shim_, verdict);
  }
  return verdict;
}

absl::StatusOr<channel::Answer> Attempt::AskShim(const channel::Command& command) const {
  const RankRights rights(rank_user_);
  return services_.shims.Ask(fmt::format("{}/run/{}.sock", services_.setup.data_dir, uid_),
                             command);
}

void Attempt::SteerShim(MonoTime heard) {
  if (Stopping() && !stop_sent_) {
    std::string reason;
    {
      const MutexLock lock(mutex_);
      reason = intent_reason_;
      // Only the server's word stops ranks; an interrupted worker leaves them running.
      if (intent_ == v1::DesiredAttempt::RUN) return;
    }
    if (WaitsForLastCheckpoint()) return;
    const absl::Status asked =
        AskShim({"stop", reason.empty() ? "stop requested" : reason}).status();
    stop_sent_ = asked.ok();
    SetSilent(!asked.ok(),
              fmt::format("its shim does not take the order to stop ({})", Message(asked)));
  } else if (heard > renewed_at_) {
    const std::chrono::duration<double> age = services_.clock.Mono() - heard;
    if (AskShim({.command = "renew", .age = age.count()}).ok()) renewed_at_ = heard;
  }
  AskForCheckpoints();
}

void Attempt::LookAtRanks() {
  const GangWatch::News news = [&] {
    const RankRights rights(rank_user_);
    return watch_.Look(shim_);
  }();
  for (const std::string& warning : news.warnings) Warn(warning);
  if (!news.hang) return;
  {
    const MutexLock lock(mutex_);
    record_.finding = *news.hang;
  }
  Save();
  spdlog::warn("attempt {}: {}", uid_, news.hang->message());
  // Should it not answer, the next look finds the same.
  (void)AskShim({.command = "stop", .reason = news.hang->message(), .cause = "watch"});
}

void Attempt::Warn(const std::string& message) {
  spdlog::warn("attempt {}: {}", uid_, message);
  const RankRights rights(rank_user_);
  const double now = static_cast<double>(UnixMicros(services_.clock.Wall())) / 1e6;
  absl::StatusOr<io::AppendFile> file = io::AppendFile::Open(dir_ + "/node.events");
  const absl::Status written =
      file.ok() ? file->Append(channel::ToLine(channel::Event{now, channel::WarningEvent{message}}))
                : file.status();
  if (!written.ok()) spdlog::warn("attempt {}: {}", uid_, Message(written));
}

void Attempt::AskForCheckpoints() {
  int64_t wanted = 0;
  {
    const MutexLock lock(mutex_);
    if (checkpoints_wanted_ <= record_.checkpoints_asked) return;
    wanted = checkpoints_wanted_;
  }
  if (shim_.state != "running" || !AskShim({"checkpoint", ""}).ok()) return;
  {
    const MutexLock lock(mutex_);
    record_.checkpoints_asked = wanted;
  }
  Save();
}

bool Attempt::WaitsForLastCheckpoint() {
  Nanos patience = std::chrono::duration_cast<Nanos>(
      std::chrono::duration<double>(services_.setup.grace_seconds));
  {
    const MutexLock lock(mutex_);
    if (!checkpoint_first_ || abandoned_ || shim_.state != "running") return false;
    patience = std::max(patience, checkpoint_patience_);
  }
  const MonoTime now = services_.clock.Mono();
  if (!last_asked_at_) {
    last_asked_after_ = checkpoints_.newest();
    last_asked_at_ = now;
    if (!AskShim({"checkpoint", ""}).ok()) return false;
  }
  if (checkpoints_.newest() > last_asked_after_ || now - *last_asked_at_ >= patience) return false;
  Enter(v1::AttemptStatus::STOPPING, "writing a checkpoint before the end");
  return true;
}

void Attempt::ProcessesGone(const v1::Verdict& verdict) {
  gone_verdict_ = verdict;
  gone_at_ = services_.clock.Mono();
  CheckMemoryIsBack();
}

HostEvidence Attempt::LookAtHost(const AttemptRecord& record) const {
  // The kernel's clock may run some seconds apart.
  constexpr Nanos kApart = seconds(5);
  HostEvidence host;
  host.kernel = ReadKernelLog(Nanos(record.launched_ns) - kApart, services_.setup.kernel_log);
  host.oom_kills = CgroupOomKills().value_or(0) - record.oom_kills_before;
  const std::vector<v1::Slot> slots = services_.inventory.Slots();
  for (const int slot : record.dispatch.slots()) {
    if (!services_.inventory.IsGpu(slot)) continue;
    const std::string name = fmt::format("GPU {}", slot);
    const std::string pci = services_.inventory.PciOf(slot);
    if (!pci.empty()) host.gpus[pci] = name;
    if (!slots[slot].healthy()) host.gpu_problems[name] = slots[slot].health_reason();
  }
  return host;
}

std::string Attempt::MemoryHeld(const AttemptRecord& record,
                                std::vector<std::string>& unseen) const {
  const bool patient = services_.clock.Mono() - *gone_at_ <= kMemoryPatience;
  std::string held;
  for (int i = 0; i < record.dispatch.slots_size(); ++i) {
    const int slot = record.dispatch.slots(i);
    if (!services_.inventory.IsGpu(slot)) continue;
    const Inventory::Memory memory = services_.inventory.MemoryOf(slot);
    const int64_t before =
        i < static_cast<int>(record.memory_before.size()) ? record.memory_before[i] : 0;
    if (memory.at <= *gone_at_) {
      // A driver that answers for the others will not answer for this one soon. One that does not
      // answer at all may only be slow.
      if (memory.unreadable_at > *gone_at_) {
        unseen.push_back(fmt::format("GPU {} cannot be read: its memory was not seen back", slot));
      } else if (!patient) {
        unseen.push_back(
            fmt::format("GPU {} could not be read for {} s: its memory was not seen back", slot,
                        kMemoryPatience.count()));
      } else {
        held = "waiting for a reading of the GPUs' memory";
      }
    } else if (memory.used_bytes > before + kMemorySlack) {
      const std::string text = fmt::format("GPU {} still holds {} although all processes are gone",
                                           slot, BytesText(memory.used_bytes));
      // A healthy one would be given to the next job, which would find it full. Of one that waits
      // for a reset nothing comes back before.
      if (patient || memory.healthy) {
        held = text;
      } else {
        unseen.push_back(text);
      }
    }
  }
  return held;
}

void Attempt::CheckMemoryIsBack() {
  AttemptRecord record;
  {
    const MutexLock lock(mutex_);
    record = record_;
  }
  std::vector<std::string> unseen;
  const std::string held = MemoryHeld(record, unseen);
  if (held.empty()) {
    {
      const MutexLock lock(mutex_);
      stuck_ = false;
    }
    ApplyHostEvidence(LookAtHost(record), shim_, *gone_verdict_);
    for (const std::string& each : unseen) {
      Warn(each);
      gone_verdict_->add_evidence(each);
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
