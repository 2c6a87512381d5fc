#include "worker/engine/train/checkpoint_saver.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>
#include <utility>

#include "common/base/duration.h"
#include "common/base/version.h"
#include "common/io/file.h"
#include "common/spec/visit.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/disk.h"
#include "worker/engine/train/training_state.h"

namespace sft::engine {

namespace fs = std::filesystem;

namespace {

constexpr int kMostThreads = 8;

// Half of a rank's share of the cores: the other half feeds its device.
int Threads(int ranks_of_node) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / ranks_of_node / 2, 1, kMostThreads);
}

}  // namespace

CheckpointSaver::CheckpointSaver(CheckpointPlace place, const spec::JobSpec& spec, Stamp stamp,
                                 TrainingModel& model, Communicator& comm, TrainObserver& observer,
                                 Clock& clock)
    : place_(std::move(place)),
      when_(spec.checkpoint),
      save_best_(spec.training.validation.save_best_model_at_end),
      sharding_(spec::EnumName(spec.parallelism.sharding)),
      stamp_(std::move(stamp)),
      model_(model),
      comm_(comm),
      observer_(observer),
      clock_(clock),
      shard_(comm.device(), place_.ranks_of_node(comm.world()),
             Threads(place_.ranks_of_node(comm.world())), place_.file_bytes),
      started_(clock.Mono()),
      last_save_(started_) {
  // Before the first step nobody writes: that comes after an exchange of all ranks.
  if (place_.dir.empty() || !first_of_node()) return;
  const absl::Status removed = RemoveLeftovers(place_.dir);
  if (!removed.ok()) {
    observer_.OnMessage(fmt::format("half a checkpoint is left over: {}", Message(removed)));
  }
}

fs::path CheckpointSaver::Partial() const {
  fs::path path = Final();
  path += kPartial;
  return path;
}

uint32_t CheckpointSaver::OwnFlags(bool asked) {
  uint32_t flags = asked ? uint32_t{kAsked} : 0;
  if (comm_.rank() == 0 && when_.save_strategy == spec::SaveStrategy::kTime &&
      SecondsOf(clock_.Mono() - last_save_) >= 60 * when_.save_minutes) {
    flags |= kTimeDue;
  }
  const bool works = phase_ == Phase::kShards || (phase_ == Phase::kManifest && comm_.rank() == 0);
  if (works && background_.done()) flags |= background_.error().empty() ? kDone : kFailed;
  return flags;
}

void CheckpointSaver::OnFlags(std::span<const uint32_t> flags) {
  for (const uint32_t flag : flags) asked_ = asked_ || (flag & kAsked) != 0;
  time_due_ = (flags[0] & kTimeDue) != 0;
  if (asked_ && place_.dir.empty()) {
    observer_.OnMessage("a checkpoint was asked for, but this run has no folder for any");
    asked_ = false;
  }
  const auto ended = [](uint32_t flag) { return (flag & (kDone | kFailed)) != 0; };
  const auto failed = [](uint32_t flag) { return (flag & kFailed) != 0; };
  if (phase_ == Phase::kShards && std::all_of(flags.begin(), flags.end(), ended)) {
    if (std::any_of(flags.begin(), flags.end(), failed)) return Drop(flags);
    const MonoTime begin = clock_.Mono();
    GatherFiles();
    phase_ = Phase::kManifest;
    if (comm_.rank() == 0) StartManifest();
    report_.stall_seconds += SecondsOf(clock_.Mono() - begin);
  } else if (phase_ == Phase::kManifest && ended(flags[0])) {
    failed(flags[0]) ? Drop(flags) : Settle();
  }
}

void CheckpointSaver::BeforeUpdate() {
  if (phase_ != Phase::kShards) return;
  const MonoTime begin = clock_.Mono();
  shard_.WaitCopied();
  report_.stall_seconds += SecondsOf(clock_.Mono() - begin);
}

std::string CheckpointSaver::Due(const Moment& moment) const {
  if (asked_) return "asked";
  if (when_.save_strategy == spec::SaveStrategy::kNo) return "";
  if (save_best_ && moment.best) return "best";
  switch (when_.save_strategy) {
    case spec::SaveStrategy::kSteps:
      return moment.step % when_.save_steps == 0 ? "steps" : "";
    case spec::SaveStrategy::kEpoch:
      return moment.ends_epoch ? "epoch" : "";
    case spec::SaveStrategy::kTime:
      return time_due_ && !moment.last ? "time" : "";
    case spec::SaveStrategy::kNo:
      break;
  }
  return "";
}

void CheckpointSaver::AfterStep(const Moment& moment, const BestTracker& best,
                                const std::vector<at::Tensor>& best_weights) {
  if (place_.dir.empty()) return;
  const std::string reason = Due(moment);
  if (reason.empty()) return Reserve();
  // After the last step nothing is held up by waiting.
  if (moment.last) Finish();
  if (phase_ == Phase::kIdle) return Save(reason, moment, best, best_weights);
  // Those come again at the next step.
  if (reason == "asked" || reason == "time") return;
  if (comm_.rank() == 0) {
    observer_.OnMessage(
        fmt::format("no checkpoint of step {} ({}): that of step {} is still being written",
                    moment.step, reason, manifest_.step));
  }
}

// Optimizers have their states after the first step.
void CheckpointSaver::Reserve() {
  if (reserved_ || phase_ != Phase::kIdle || when_.save_strategy == spec::SaveStrategy::kNo) return;
  reserved_ = true;
  if (model_.holds_first_copy()) shard_.Reserve(StateTensors(model_, {}));
}

void CheckpointSaver::Save(const std::string& reason, const Moment& moment, const BestTracker& best,
                           const std::vector<at::Tensor>& best_weights) {
  started_ = clock_.Mono();
  last_save_ = started_;
  asked_ = time_due_ = false;
  manifest_ = {};
  manifest_.step = moment.step;
  manifest_.epoch = moment.epoch;
  manifest_.samples = moment.samples;
  manifest_.engine_version = kVersion;
  manifest_.world = comm_.world();
  manifest_.sharding = sharding_;
  manifest_.reason = reason;
  manifest_.best_metric = best.best();
  manifest_.best_step = best.best_step();
  manifest_.validations_without_gain = best.without_gain();
  manifest_.stamp = stamp_;
  report_ = {};
  report_.step = moment.step;
  report_.path = Final().string();
  report_.reason = reason;
  report_.metric = moment.metric;
  report_.best = moment.best;
  own_ = {};
  observer_.OnPhase(TrainPhase::kCheckpoint, moment.step);
  phase_ = Phase::kShards;
  const std::vector<AdamW*> optimizers = model_.Optimizers();
  manifest_.optimizer_steps = optimizers[0]->steps();
  std::vector<NamedTensor> tensors;
  if (model_.holds_first_copy()) {
    const bool earlier = best.best_step() < moment.step;
    tensors = StateTensors(model_, earlier ? best_weights : std::vector<at::Tensor>());
  } else if (!first_of_node()) {
    background_.Start([](const std::atomic<bool>&) {});
    return;
  }
  shard_.Begin(std::move(tensors));
  background_.Start([this, partial = Partial()](const std::atomic<bool>& cancelled) {
    own_ = shard_.Write(partial, comm_.rank(), comm_.world(), cancelled);
  });
  report_.stall_seconds += SecondsOf(clock_.Mono() - started_);
}

// Files are listed by rank, of which some may have none.
void CheckpointSaver::GatherFiles() {
  std::string own;
  for (const CheckpointFile& file : own_) own += fmt::format("{} {}\n", file.size, file.sha256);
  const std::vector<std::string> all = AllGatherStrings(comm_, own);
  const int end = place_.first_rank + place_.ranks_of_node(comm_.world());
  for (int rank = 0; rank < comm_.world(); ++rank) {
    std::istringstream lines(all[static_cast<size_t>(rank)]);
    CheckpointFile file{.rank = rank};
    for (size_t i = 0; lines >> file.size >> file.sha256; ++i) {
      file.name = ShardName(rank, comm_.world(), i);
      manifest_.files.push_back(file);
      if (rank >= place_.first_rank && rank < end) report_.bytes += file.size;
    }
  }
}

void CheckpointSaver::StartManifest() {
  const std::string text = manifest_.ToText();
  report_.bytes += static_cast<int64_t>(text.size());
  background_.Start([this, text, partial = Partial(), target = Final()](const std::atomic<bool>&) {
    WriteTextFile(partial / Manifest::kFileName, text);
    CommitFolder(partial, target);
    finished_ns_ = clock_.Mono().time_since_epoch().count();
  });
}

void CheckpointSaver::Settle() {
  phase_ = Phase::kIdle;
  if (!first_of_node()) return;
  if (comm_.rank() == 0) {
    report_.seconds = SecondsOf(MonoTime(Nanos(finished_ns_.load())) - started_);
  } else {
    const MonoTime begin = clock_.Mono();
    try {
      // On shared storage rank 0 has renamed it.
      if (fs::exists(Partial())) CommitFolder(Partial(), Final());
    } catch (const Error& error) {
      if (!fs::exists(Final())) {
        observer_.OnMessage(
            fmt::format("the checkpoint of step {} is lost: {}", manifest_.step, error.what()));
        return;
      }
    }
    report_.seconds = SecondsOf(clock_.Mono() - started_);
    report_.stall_seconds += SecondsOf(clock_.Mono() - begin);
  }
  observer_.OnCheckpoint(report_);
}

void CheckpointSaver::Drop(std::span<const uint32_t> flags) {
  phase_ = Phase::kIdle;
  std::vector<int> ranks;
  for (size_t rank = 0; rank < flags.size(); ++rank) {
    if ((flags[rank] & kFailed) != 0) ranks.push_back(static_cast<int>(rank));
  }
  const std::string goes_on = "the training goes on, and the next checkpoint is tried as usual";
  if ((flags[comm_.rank()] & kFailed) != 0) {
    observer_.OnMessage(fmt::format("WARNING: the checkpoint of step {} was not written: {}; {}",
                                    manifest_.step, background_.error(), goes_on));
  } else if (comm_.rank() == 0) {
    observer_.OnMessage(fmt::format(
        "WARNING: the checkpoint of step {} was not written: rank {} failed, as its log says; {}",
        manifest_.step, fmt::join(ranks, ", "), goes_on));
  }
  RemovePartial();
}

void CheckpointSaver::RemovePartial() {
  if (!first_of_node()) return;
  const absl::Status removed = io::RemoveAll(Partial().string());
  if (!removed.ok()) {
    observer_.OnMessage(fmt::format("{} is left over: {}", Partial().string(), Message(removed)));
  }
}

void CheckpointSaver::Stop(const Moment& moment, const BestTracker& best,
                           const std::vector<at::Tensor>& best_weights) {
  if (asked_) {
    Finish();
    Save("stopping", moment, best, best_weights);
    Finish();
  } else if (report_.reason == "asked") {
    Finish();
  } else {
    Abandon();
  }
}

void CheckpointSaver::Finish() {
  while (phase_ != Phase::kIdle) {
    background_.Wait();
    std::vector<uint32_t> flags;
    for (const int64_t flag : AllGatherInt64(comm_, OwnFlags(false))) {
      flags.push_back(static_cast<uint32_t>(flag));
    }
    OnFlags(flags);
  }
}

void CheckpointSaver::Abandon() {
  if (phase_ == Phase::kIdle) return;
  if (phase_ == Phase::kManifest) return Finish();
  background_.Cancel();
  comm_.Barrier();
  RemovePartial();
  phase_ = Phase::kIdle;
}

void CommitFolder(const fs::path& partial, const fs::path& target) {
  CheckDisk(io::SyncDir(partial.string()));
  fs::path old = target;
  old += ".old";
  old += kPartial;
  CheckDisk(io::RemoveAll(old.string()));
  const bool replaces = fs::exists(target);
  if (replaces) CheckDisk(io::RenameDurably(target.string(), old.string()));
  CheckDisk(io::RenameDurably(partial.string(), target.string()));
  if (replaces) CheckDisk(io::RemoveAll(old.string()));
}

absl::Status RemoveLeftovers(const fs::path& dir) {
  const auto names = io::ListDir(dir.string());
  if (!names.ok()) return absl::OkStatus();  // not there yet
  for (const std::string& name : *names) {
    if (!name.starts_with("step-") || !name.ends_with(kPartial)) continue;
    SFT_RETURN_IF_ERROR(io::RemoveAll((dir / name).string()));
  }
  return absl::OkStatus();
}

}  // namespace sft::engine
