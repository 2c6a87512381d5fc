#include "worker/attempt/attempt_control.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>

#include "common/io/file.h"
#include "worker/attempt/launch_plan.h"
#include "worker/attempt/verdict.h"
#include "worker/channel/claim.h"
#include "worker/channel/work_folder.h"
#include "worker/node/data_cleaning.h"
#include "worker/transfer/checkpoint_folder.h"

namespace sft::worker {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int64_t kMaxStatusBytes = 16 << 20;

GangWatch::Options WatchOptions(const AttemptRecord& record, const AttemptContext& context) {
  const v1::Dispatch& dispatch = record.dispatch;
  GangWatch::Options options;
  options.attempt_dir = context.dir;
  options.gang = {context.node(), dispatch.world_size(), false,
                  LimitsOf(context.job.ok() ? context.job->compute : spec::JobSpec::Compute())};
  if (context.job.ok()) options.gang.stages = context.job->parallelism.pipeline_parallel_size;
  for (int i = 0; i < dispatch.slots_size(); ++i) {
    if (!context.services.inventory.IsGpu(dispatch.slots(i))) continue;
    options.gang.gpu = true;
    options.places[dispatch.first_rank() + i] = fmt::format("GPU {}", dispatch.slots(i));
  }
  return options;
}

}  // namespace

AttemptControl::AttemptControl(const AttemptContext& context, SharedRecord& shared,
                               const CheckpointShipper& checkpoints)
    : context_(context),
      shared_(shared),
      checkpoints_(checkpoints),
      watch_(WatchOptions(shared.record(), context), context.services.clock) {}

void AttemptControl::Turn(MonoTime heard) {
  shared_.With([&](AttemptData& data) { data.heard = heard; });
  memory_.BeginTurn();
  for (;;) {
    const ControlView view = View();
    const ControlStep step = DecideControl(view, memory_);
    if (step.what == ControlDo::kWait) return;
    const absl::Status result = Do(step, view);
    ControlView after = view;
    after.now = context_.services.clock.Mono();
    Note(step.what, result, after, memory_);
    shared_.With([&](AttemptData& data) { data.stuck = memory_.stuck; });
  }
}

ControlView AttemptControl::View() const {
  ControlView view;
  shared_.With([&](const AttemptData& data) {
    view.state = data.state;
    view.reason = data.reason;
    view.checkpoints_asked = data.record.checkpoints_asked;
    view.wish = data.wish;
    view.heard = data.heard;
  });
  view.newest_checkpoint = checkpoints_.newest();
  view.fencing = context_.fencing;
  view.grace = std::chrono::duration_cast<Nanos>(Seconds(context_.services.setup.grace_seconds));
  view.now = context_.services.clock.Mono();
  return view;
}

absl::Status AttemptControl::Do(const ControlStep& step, const ControlView& view) {
  switch (step.what) {
    case ControlDo::kWait:
      break;
    case ControlDo::kLook:
      Look();
      break;
    case ControlDo::kLaunch:
      return Launch(view);
    case ControlDo::kStartShim:
      return StartShim();
    case ControlDo::kKeepOut:
      return KeepShimsOut();
    case ControlDo::kRenew: {
      const Seconds age = context_.services.clock.Mono() - view.heard;
      return AskShim({.command = "renew", .age = age.count()}).status();
    }
    case ControlDo::kAskCheckpoint:
      return AskCheckpoint(view.wish.checkpoints_asked);
    case ControlDo::kAskLast:
      return AskShim({"checkpoint", ""}).status();
    case ControlDo::kStop:
      return Stop(view.wish);
    case ControlDo::kWatchRanks:
      WatchRanks();
      break;
    case ControlDo::kJudgeEnd:
      JudgeProcesses(step.end);
      break;
    case ControlDo::kLookAtMemory:
      memory_.gpus = LookAtMemory();
      break;
    case ControlDo::kAwaitMemory:
      context_.services.inventory.AskForRefresh();
      shared_.Enter(view.state, step.text);
      break;
    case ControlDo::kConclude:
      Conclude(step, view.wish);
      break;
    case ControlDo::kShow:
      shared_.Enter(step.state, step.text);
      break;
  }
  return absl::OkStatus();
}

void AttemptControl::Look() {
  absl::StatusOr<channel::ShimStatus> status = ReadShimStatus();
  const auto is_dead = [&] {
    return status.ok() && status->state != "exited" && !context_.services.shims.Alive(*status);
  };
  bool dead = is_dead();
  if (dead) {
    status = ReadShimStatus();  // it may have ended between the two looks
    dead = status.ok() && status->state != "exited";
  }
  ShimView& view = memory_.shim.emplace();
  if (status.ok()) {
    shim_ = *std::move(status);
    view = {dead ? ShimView::Sight::kDead : ShimView::Sight::kStatus, PhaseOf(shim_.state),
            shim_.reason};
    return;
  }
  view.text = std::string(Message(status.status()));
  view.sight = absl::IsPermissionDenied(status.status()) ? ShimView::Sight::kForbidden
               : absl::IsNotFound(status.status())       ? ShimView::Sight::kNone
                                                         : ShimView::Sight::kBroken;
}

absl::StatusOr<channel::ShimStatus> AttemptControl::ReadShimStatus() {
  const absl::StatusOr<std::string> text = [&] {
    const RankRights rights(context_.rank_user);
    return io::ReadFile(context_.dir + "/status.json", kMaxStatusBytes, io::Links::kRefuse);
  }();
  if (text.ok()) return channel::ParseShimStatus(*text);
  // A shim that found no room for the file still says what it would write.
  const absl::StatusOr<channel::Answer> answer = AskShim({.command = "status"});
  if (answer.ok() && answer->ok) return answer->status;
  return text.status();
}

absl::StatusOr<channel::Answer> AttemptControl::AskShim(const channel::Command& command) const {
  const RankRights rights(context_.rank_user);
  return context_.services.shims.Ask(
      fmt::format("{}/run/{}.sock", context_.services.setup.data_dir, context_.uid), command);
}

absl::Status AttemptControl::WriteLaunchFiles(const ControlView& view) {
  const AttemptServices& services = context_.services;
  const AttemptRecord record = shared_.record();
  StagedJob staged;
  std::string torch;
  shared_.With([&](const AttemptData& data) {
    staged = *data.prepared.staged;
    torch = data.prepared.torch_lib_dir;
  });
  LaunchFiles files = PlanLaunch({context_.uid, context_.epoch, record.dispatch, *context_.job,
                                  staged, view.wish.rendezvous, torch},
                                 services.setup, services.inventory);
  files.shim.fencing_seconds = Seconds(context_.fencing).count();
  files.shim.fencing_age = Seconds(services.clock.Mono() - view.heard).count();
  SFT_RETURN_IF_ERROR(MakeRankFolders(files.rank, record.dispatch.first_rank() == 0));
  SFT_RETURN_IF_ERROR(LinkAdapter(staged.adapter_files, files.rank.adapter_dir));
  for (const auto& [name, text] : {std::pair("/launch.json", ToJson(files.rank)),
                                   std::pair("/shim.json", ToJson(files.shim))}) {
    SFT_RETURN_IF_ERROR(io::WriteFileAtomic(context_.dir + name, text));
    SFT_RETURN_IF_ERROR(LetRanksRead(context_.dir + name, context_.rank_user));
  }
  shared_.With([&](AttemptData& data) {
    AttemptRecord& launched = data.record;
    launched.launched = true;
    launched.rank_uid = context_.rank_user ? context_.rank_user->uid : 0;
    launched.rank_gid = context_.rank_user ? context_.rank_user->gid : 0;
    launched.launched_ns = services.clock.Mono().time_since_epoch().count();
    launched.oom_kills_before = CgroupOomKills().value_or(0);
    for (const int slot : record.dispatch.slots()) {
      launched.memory_before.push_back(services.inventory.MemoryOf(slot).used_bytes);
    }
    data.prepared.port.Release();
  });
  // Without the record on disk a restarted worker would start the ranks a second time.
  return shared_.Save();
}

absl::Status AttemptControl::MakeRankFolders(const channel::RankLaunch& launch, bool delivers) {
  const NodeSetup& setup = context_.services.setup;
  SFT_RETURN_IF_ERROR(LetRanksWrite(context_.dir, context_.rank_user));
  SFT_RETURN_IF_ERROR(LetRanksWrite(setup.data_dir + "/run", context_.rank_user));
  if (!setup.has_shared) SFT_RETURN_IF_ERROR(OpenCheckpointFolder(context_.job_id, setup));
  const RankRights rights(context_.rank_user);
  SFT_RETURN_IF_ERROR(io::MakeDirs(launch.cache_dir));
  // What an earlier attempt of the job left there must not be taken for this one's.
  if (delivers) SFT_RETURN_IF_ERROR(io::RemoveAll(launch.output_dir));
  SFT_RETURN_IF_ERROR(io::MakeDirs(launch.output_dir));
  return io::MakeDirs(launch.checkpoint_dir);
}

// One folder of the files, each of which lies under its hash.
absl::Status AttemptControl::LinkAdapter(const std::map<std::string, std::string>& files,
                                         const std::string& folder) {
  if (files.empty()) return absl::OkStatus();
  const RankRights rights(context_.rank_user);
  SFT_RETURN_IF_ERROR(io::RemoveAll(folder));
  for (const auto& [name, path] : files) {
    const std::string link = folder + "/" + name;
    SFT_RETURN_IF_ERROR(io::MakeDirs(link.substr(0, link.rfind('/'))));
    if (symlink(path.c_str(), link.c_str()) != 0) {
      return ErrnoStatus(fmt::format("cannot link {}", link), errno);
    }
  }
  return absl::OkStatus();
}

absl::Status AttemptControl::Launch(const ControlView& view) {
  start_ = WriteLaunchFiles(view);
  // Nothing was started, whatever the file's error is.
  if (!start_.ok()) {
    return absl::IsResourceExhausted(start_) ? start_ : Internal(Message(start_));
  }
  absl::Status started = StartShim();
  if (started.ok() || absl::IsUnknown(started) || absl::IsAlreadyExists(started)) {
    shared_.Enter(v1::AttemptStatus::PREPARING);
  }
  return started;
}

absl::Status AttemptControl::StartShim() {
  start_ = context_.services.shims.Start(context_.dir + "/shim.json");
  if (absl::IsUnknown(start_)) {
    context_.Warn(fmt::format("{}; it may have started: going on as if it had", Message(start_)));
  }
  return start_;
}

absl::Status AttemptControl::KeepShimsOut() const {
  const RankRights rights(context_.rank_user);
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd claim, channel::ClaimAttempt(context_.dir, context_.uid));
  channel::ShimStatus status;
  status.attempt_uid = context_.uid;
  status.epoch = context_.epoch;
  status.state = "exited";
  status.cause = "failure";
  status.reason = Message(start_);
  return io::WriteFileAtomic(context_.dir + "/status.json", ToJson(status));
}

absl::Status AttemptControl::Stop(const Wish& wish) {
  return AskShim({"stop", wish.stop_reason.empty() ? "stop requested" : wish.stop_reason}).status();
}

absl::Status AttemptControl::AskCheckpoint(int64_t wanted) {
  SFT_RETURN_IF_ERROR(AskShim({"checkpoint", ""}).status());
  shared_.With([&](AttemptData& data) { data.record.checkpoints_asked = wanted; });
  (void)shared_.Save();
  return absl::OkStatus();
}

void AttemptControl::WatchRanks() {
  const GangWatch::News news = [&] {
    const RankRights rights(context_.rank_user);
    return watch_.Look(shim_);
  }();
  for (const std::string& warning : news.warnings) context_.Warn(warning);
  if (!news.hang) return;
  shared_.With([&](AttemptData& data) { data.record.finding = *news.hang; });
  (void)shared_.Save();
  spdlog::warn("attempt {}: {}", context_.uid, news.hang->message());
  // Should it not answer, the next look finds the same.
  (void)AskShim({.command = "stop", .reason = news.hang->message(), .cause = "watch"});
}

void AttemptControl::JudgeProcesses(AttemptEnd end) {
  const std::string& node = context_.node();
  if (end == AttemptEnd::kStartFailed) {
    verdict_ = MakeStartVerdict(start_, node);
  } else if (end == AttemptEnd::kStatusBroken) {
    verdict_ = SimpleVerdict(v1::Verdict::INFRASTRUCTURE, "shim_lost", memory_.shim->text,
                             "look at the node's disk", node);
  } else if (end == AttemptEnd::kShimLost) {
    verdict_ = SimpleVerdict(v1::Verdict::INFRASTRUCTURE, "shim_lost",
                             "the shim of this attempt died and its ranks with it",
                             "see dmesg on the node, or its boot log if it was restarted", node);
  } else {
    // A worker that was not there finds the end later than it came.
    const WallTime now = context_.services.clock.Wall();
    const WallTime ended = std::min(now, LastUse(context_.dir + "/status.json").value_or(now));
    shared_.With([&](AttemptData& data) { data.record.ended_us = UnixMicros(ended); });
    verdict_ = JudgeExit();
  }
}

v1::Verdict AttemptControl::JudgeExit() {
  const RankRights rights(context_.rank_user);
  v1::Verdict verdict = MakeVerdict(shim_, ReadAllTraces(context_.dir, shim_), context_.node());
  if (shim_.cause == "watch") {
    const v1::Verdict finding = shared_.record().finding;
    if (!finding.code().empty()) verdict = finding;
  } else if (verdict.domain() != v1::Verdict::NONE) {
    watch_.AddTraces(shim_, verdict);
  }
  return verdict;
}

std::vector<GpuMemory> AttemptControl::LookAtMemory() const {
  const Inventory& inventory = context_.services.inventory;
  const AttemptRecord record = shared_.record();
  std::vector<GpuMemory> gpus;
  for (int i = 0; i < record.dispatch.slots_size(); ++i) {
    const int slot = record.dispatch.slots(i);
    if (!inventory.IsGpu(slot)) continue;
    const int64_t before =
        i < static_cast<int>(record.memory_before.size()) ? record.memory_before[i] : 0;
    gpus.push_back({slot, before, inventory.MemoryOf(slot)});
  }
  return gpus;
}

HostEvidence AttemptControl::LookAtHost(const AttemptRecord& record) const {
  // The kernel's clock may run some seconds apart.
  constexpr Nanos kApart = std::chrono::seconds(5);
  const Inventory& inventory = context_.services.inventory;
  HostEvidence host;
  host.kernel =
      ReadKernelLog(Nanos(record.launched_ns) - kApart, context_.services.setup.kernel_log);
  host.oom_kills = CgroupOomKills().value_or(0) - record.oom_kills_before;
  const std::vector<v1::Slot> slots = inventory.Slots();
  for (const int slot : record.dispatch.slots()) {
    if (!inventory.IsGpu(slot)) continue;
    const std::string name = fmt::format("GPU {}", slot);
    const std::string pci = inventory.PciOf(slot);
    if (!pci.empty()) host.gpus[pci] = name;
    if (!slots[slot].healthy()) host.gpu_problems[name] = slots[slot].health_reason();
  }
  return host;
}

void AttemptControl::RemoveWork() const {
  if (!context_.job.ok() || !context_.job->exports()) return;
  const NodeSetup& setup = context_.services.setup;
  const std::string output = OutputDir(context_.uid, context_.job_id, /*full_model=*/true, setup);
  const RankRights rights(context_.rank_user);
  const absl::Status removed = io::RemoveAll(channel::WorkFolder(output, context_.uid));
  if (!removed.ok()) spdlog::warn("attempt {}: {}", context_.uid, Message(removed));
  rmdir(channel::WorkFolder(output).c_str());  // stays while another attempt works there
}

void AttemptControl::Conclude(const ControlStep& step, const Wish& wish) {
  RemoveWork();
  if (step.end == AttemptEnd::kStopped) {
    return shared_.Conclude(
        SimpleVerdict(v1::Verdict::NONE, "stopped", wish.stop_reason, "", context_.node()));
  }
  if (step.end == AttemptEnd::kStartFailed) {
    return shared_.Conclude(MakeStartVerdict(start_, context_.node()));
  }
  ApplyHostEvidence(LookAtHost(shared_.record()), shim_, verdict_);
  for (const std::string& each : step.unseen) {
    context_.Warn(each);
    verdict_.add_evidence(each);
  }
  shared_.Conclude(verdict_);
}

}  // namespace sft::worker
