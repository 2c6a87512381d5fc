#include "worker/attempt/decide.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/bytes.h"

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
// Longer than the longest pause between two words of a server that is there.
constexpr seconds kServerAway{90};

using Sight = ShimView::Sight;
using Phase = ShimView::Phase;

ControlStep Do(ControlDo what) { return {.what = what}; }
ControlStep Judge(AttemptEnd end) { return {.what = ControlDo::kJudgeEnd, .end = end}; }
ControlStep Conclude(AttemptEnd end) { return {.what = ControlDo::kConclude, .end = end}; }

// Nothing, where the server knows it already.
ControlStep Show(const ControlView& view, AttemptState state, const std::string& text) {
  if (view.state == state && view.reason == text) return {};
  return {.what = ControlDo::kShow, .state = state, .text = text};
}

// A shim that says nothing for long is told to the server: nobody can know whether ranks live.
void SetSilent(bool silent, const std::string& what, MonoTime now, ControlMemory& memory) {
  if (!silent) memory.silent_since.reset();
  if (silent && !memory.silent_since) memory.silent_since = now;
  memory.stuck = silent && now - *memory.silent_since >= kShimPatience;
  memory.silence =
      memory.stuck ? what + ": look at the sft-shim of this attempt on the node" : std::string();
}

ControlStep DecideStart(const ControlView& view, const ControlMemory& memory) {
  if (memory.start_failed) return Conclude(AttemptEnd::kStartFailed);
  if (view.wish.stop) return Conclude(AttemptEnd::kStopped);
  // Past the fencing limit the server may have placed the gang elsewhere; when it speaks again it
  // says so.
  if (view.wish.rendezvous.empty() || view.fenced()) return {};
  return Do(ControlDo::kLaunch);
}

// The worker died between its record and the shim's start, or the start took too long; the shim's
// lock keeps a second out. One that is there and does not speak (it is starting, or stopped) may
// have living ranks: that a second does not start says nothing of it. How old its launch file is
// does not matter to the fencing limit: the server has to have been heard of in this life.
ControlStep DecideWithoutStatus(const ControlView& view, const ControlMemory& memory) {
  if (view.heard == MonoTime{} || view.fenced()) return {};
  if (memory.start_failed) {
    return memory.kept_out ? Judge(AttemptEnd::kStartFailed) : Do(ControlDo::kKeepOut);
  }
  const ControlStep show = Show(view, v1::AttemptStatus::PREPARING, memory.silence);
  if (show.what != ControlDo::kWait) return show;
  return view.now < memory.start_again_at ? ControlStep{} : Do(ControlDo::kStartShim);
}

// The ranks write a last checkpoint before they are told to end.
bool WritesLast(const ControlView& view, const ControlMemory& memory) {
  if (!view.wish.stop || memory.stop_taken || !view.wish.checkpoint_first || view.wish.abandoned ||
      memory.shim->phase != Phase::kRunning || memory.Did(ControlDo::kStop)) {
    return false;
  }
  if (!memory.last_asked) return true;
  return !memory.last_refused && view.newest_checkpoint <= memory.last_asked_after &&
         view.now - *memory.last_asked < std::max(view.grace, view.wish.checkpoint_patience);
}

// What the shim has to be told: that ranks end, that the server was heard of, that a checkpoint is
// wanted.
ControlStep DecideOrders(const ControlView& view, const ControlMemory& memory) {
  if (view.wish.stop && !memory.stop_taken && !memory.Did(ControlDo::kStop)) {
    const bool writes = WritesLast(view, memory);
    if (writes && !memory.last_asked) return Do(ControlDo::kAskLast);
    if (!writes) return Do(ControlDo::kStop);
    return {};
  }
  if (!memory.Did(ControlDo::kStop) && !memory.Did(ControlDo::kRenew) &&
      view.heard > memory.renewed_at) {
    return Do(ControlDo::kRenew);
  }
  if (view.wish.checkpoints_asked > view.checkpoints_asked &&
      memory.shim->phase == Phase::kRunning && !memory.Did(ControlDo::kAskCheckpoint)) {
    return Do(ControlDo::kAskCheckpoint);
  }
  return {};
}

ControlStep DecideLive(const ControlView& view, const ControlMemory& memory) {
  if (!memory.shim) return Do(ControlDo::kLook);
  switch (memory.shim->sight) {
    case Sight::kDead:
      return Judge(AttemptEnd::kShimLost);
    case Sight::kBroken:
      return Judge(AttemptEnd::kStatusBroken);
    case Sight::kForbidden:
      return Show(view, v1::AttemptStatus::PREPARING, memory.silence);
    case Sight::kNone:
      return DecideWithoutStatus(view, memory);
    case Sight::kStatus:
      break;
  }
  const Phase phase = memory.shim->phase;
  if (phase == Phase::kExited) return Judge(AttemptEnd::kExited);
  const ControlStep order = DecideOrders(view, memory);
  if (order.what != ControlDo::kWait) return order;
  if (phase == Phase::kRunning && !memory.Did(ControlDo::kWatchRanks)) {
    return Do(ControlDo::kWatchRanks);
  }
  if (phase == Phase::kPreparing) {
    return Show(view, v1::AttemptStatus::PREPARING, memory.silence);
  }
  if (phase == Phase::kStopping) {
    return Show(view, v1::AttemptStatus::STOPPING, memory.shim->text);
  }
  if (phase == Phase::kRunning && !memory.last_asked) {
    return Show(view, v1::AttemptStatus::RUNNING, memory.silence);
  }
  if (WritesLast(view, memory)) {
    return Show(view, v1::AttemptStatus::STOPPING, "writing a checkpoint before the end");
  }
  return {};
}

ControlStep DecideGone(const ControlView& view, const ControlMemory& memory) {
  if (!memory.gpus) return Do(ControlDo::kLookAtMemory);
  MemoryJudgement judged = JudgeMemory(*memory.gpus, *memory.gone_at, view.now);
  ControlStep step = Conclude(AttemptEnd::kGone);
  step.unseen = std::move(judged.unseen);
  // Its state stays: STOPPING would tell the server that this node ends the gang, and the ranks may
  // all have succeeded.
  if (!judged.held.empty()) step = {.what = ControlDo::kAwaitMemory, .text = judged.held};
  return step;
}

}  // namespace

void Wish::Take(const v1::DesiredAttempt& desired) {
  if (!stop && (desired.intent() == v1::DesiredAttempt::STOP ||
                desired.intent() == v1::DesiredAttempt::FORGET)) {
    stop = true;
    stop_reason = desired.reason();
  }
  if (desired.intent() == v1::DesiredAttempt::FORGET) abandoned = true;
  checkpoints_asked = std::max(checkpoints_asked, desired.checkpoints_asked());
  checkpoint_first = checkpoint_first || desired.checkpoint_first();
  checkpoint_patience =
      std::max(checkpoint_patience, Nanos(seconds(desired.checkpoint_patience_seconds())));
  if (!desired.rendezvous().empty()) rendezvous = desired.rendezvous();
}

void Wish::Abandon(const std::string& reason, bool lasts) {
  abandoned = true;
  kept = kept || lasts;
  if (!stop) stop_reason = reason;
  stop = true;
}

AttemptState StateOf(const AttemptRecord& record) {
  if (record.done) return v1::AttemptStatus::DONE;
  if (record.has_verdict()) return v1::AttemptStatus::FINISHING;
  return record.launched ? v1::AttemptStatus::PREPARING : v1::AttemptStatus::STAGING;
}

bool MayBeForgotten(AttemptState state, const Wish& wish) {
  return wish.abandoned && !wish.kept && state == v1::AttemptStatus::DONE;
}

bool HasProcesses(AttemptState state) {
  return state >= v1::AttemptStatus::PREPARING && state <= v1::AttemptStatus::STOPPING;
}

bool IsAway(MonoTime heard, MonoTime now) {
  return heard == MonoTime{} || now - heard > kServerAway;
}

ShimView::Phase PhaseOf(const std::string& shim_state) {
  if (shim_state == "preparing") return Phase::kPreparing;
  if (shim_state == "running") return Phase::kRunning;
  if (shim_state == "stopping") return Phase::kStopping;
  return shim_state == "exited" ? Phase::kExited : Phase::kOther;
}

MemoryJudgement JudgeMemory(const std::vector<GpuMemory>& gpus, MonoTime gone_at, MonoTime now) {
  const bool patient = now - gone_at <= kMemoryPatience;
  MemoryJudgement judged;
  for (const GpuMemory& gpu : gpus) {
    if (gpu.now.at <= gone_at) {
      // A driver that answers for the others will not answer for this one soon. One that does not
      // answer at all may only be slow.
      if (gpu.now.unreadable_at > gone_at) {
        judged.unseen.push_back(
            fmt::format("GPU {} cannot be read: its memory was not seen back", gpu.slot));
      } else if (!patient) {
        judged.unseen.push_back(
            fmt::format("GPU {} could not be read for {} s: its memory was not seen back", gpu.slot,
                        kMemoryPatience.count()));
      } else {
        judged.held = "waiting for a reading of the GPUs' memory";
      }
    } else if (gpu.now.used_bytes > gpu.before + kMemorySlack) {
      const std::string text = fmt::format("GPU {} still holds {} although all processes are gone",
                                           gpu.slot, BytesText(gpu.now.used_bytes));
      // A healthy one would be given to the next job, which would find it full. Nothing comes back
      // from one that waits for a reset.
      if (patient || gpu.now.healthy) {
        judged.held = text;
      } else {
        judged.unseen.push_back(text);
      }
    }
  }
  return judged;
}

bool ControlMemory::Did(ControlDo what) const {
  return std::find(done.begin(), done.end(), what) != done.end();
}

void ControlMemory::BeginTurn() {
  shim.reset();
  gpus.reset();
  done.clear();
  start_failed = kept_out = last_refused = over = false;
}

ControlStep DecideControl(const ControlView& view, const ControlMemory& memory) {
  if (view.wish.interrupted || memory.over) return {};
  if (view.state == v1::AttemptStatus::READY) return DecideStart(view, memory);
  if (!HasProcesses(view.state)) return {};
  return memory.gone_at ? DecideGone(view, memory) : DecideLive(view, memory);
}

void Note(ControlDo what, const absl::Status& result, const ControlView& view,
          ControlMemory& memory) {
  memory.done.push_back(what);
  switch (what) {
    case ControlDo::kLook: {
      const ShimView& shim = *memory.shim;
      const bool may_start = view.heard != MonoTime{} && !view.fenced();
      if (shim.sight == Sight::kForbidden) {
        SetSilent(true, fmt::format("what its shim writes cannot be read ({})", shim.text),
                  view.now, memory);
      } else if (shim.sight == Sight::kNone && may_start) {
        SetSilent(true, "its shim was started and says nothing", view.now, memory);
      } else if (shim.sight == Sight::kStatus && shim.phase != Phase::kExited && !view.wish.stop) {
        SetSilent(false, "", view.now, memory);
      }
      return;
    }
    case ControlDo::kLaunch:
    case ControlDo::kStartShim:
      // Each try keeps the other attempts waiting.
      if (absl::IsUnknown(result)) memory.start_again_at = view.now + kStartPause;
      memory.start_failed =
          !result.ok() && !absl::IsUnknown(result) && !absl::IsAlreadyExists(result);
      memory.over = !memory.start_failed;
      return;
    case ControlDo::kKeepOut:
      memory.kept_out = result.ok();
      if (result.ok()) return;
      memory.start_failed = false;
      memory.start_again_at = view.now + kStartPause;
      memory.over = true;
      return;
    case ControlDo::kRenew:
      if (result.ok()) memory.renewed_at = view.heard;
      return;
    case ControlDo::kAskLast:
      memory.last_asked = view.now;
      memory.last_asked_after = view.newest_checkpoint;
      memory.last_refused = !result.ok();
      return;
    case ControlDo::kStop:
      memory.stop_taken = result.ok();
      SetSilent(!result.ok(),
                fmt::format("its shim does not take the order to stop ({})", Message(result)),
                view.now, memory);
      return;
    case ControlDo::kJudgeEnd:
      memory.gone_at = view.now;
      return;
    case ControlDo::kAwaitMemory:
      memory.stuck = view.now - *memory.gone_at > kMemoryPatience;
      memory.over = true;
      return;
    case ControlDo::kConclude:
      memory.stuck = false;
      memory.over = true;
      return;
    default:
      return;
  }
}

}  // namespace sft::worker
