#include "worker/rank/step_profile.h"

#include <fmt/format.h>
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/base/duration.h"
#include "common/data/gzip_parts.h"
#include "common/io/file.h"
#include "worker/engine/base/error.h"
#include "worker/rank/trace_file.h"

namespace sft::rank {
namespace {

namespace profiler = torch::autograd::profiler;
using libkineto::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;
using TorchActivity = torch::profiler::impl::ActivityType;

constexpr size_t kMedianOver = 20;  // steps

// A GPU's kernels say what it does, so that the host's operations need not be recorded, which would
// slow what they launch.
void StartProfiler(bool gpu) {
  const ProfilerConfig config(ProfilerState::KINETO);
  std::set<TorchActivity> activities = {TorchActivity::CPU};
  std::unordered_set<at::RecordScope> scopes;
  if (gpu) {
    activities.insert(TorchActivity::CUDA);
    scopes.insert(at::RecordScope::USER_SCOPE);
  }
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities, scopes);
}

std::optional<TraceEvent::Kind> KindOf(ActivityType type) {
  switch (type) {
    case ActivityType::CPU_OP:
      return TraceEvent::Kind::kOperation;
    case ActivityType::USER_ANNOTATION:
      return TraceEvent::Kind::kSpan;
    case ActivityType::CUDA_RUNTIME:
    case ActivityType::CUDA_DRIVER:
      return TraceEvent::Kind::kRuntime;
    case ActivityType::CONCURRENT_KERNEL:
      return TraceEvent::Kind::kKernel;
    case ActivityType::GPU_MEMCPY:
    case ActivityType::GPU_MEMSET:
      return TraceEvent::Kind::kCopy;
    default:
      return std::nullopt;
  }
}

Recording RecordingOf(const profiler::ProfilerResult& result, bool gpu, int64_t skip,
                      int64_t most) {
  Recording recording{.gpu = gpu};
  for (const profiler::KinetoEvent& event : result.events()) {
    const auto kind = KindOf(static_cast<ActivityType>(event.activityType()));
    if (!kind || event.endNs() < event.startNs()) continue;
    const bool linked = *kind == TraceEvent::Kind::kRuntime || *kind == TraceEvent::Kind::kKernel ||
                        *kind == TraceEvent::Kind::kCopy;
    recording.events.push_back({.kind = *kind,
                                .name = event.name(),
                                .begin_ns = static_cast<int64_t>(event.startNs()),
                                .end_ns = static_cast<int64_t>(event.endNs()),
                                .lane = event.deviceResourceId(),
                                .launch = linked ? event.correlationId() : 0});
  }
  Arrange(recording, skip, most);
  return recording;
}

bool HasGpuWork(const Recording& recording) {
  return std::any_of(recording.events.begin(), recording.events.end(),
                     [](const TraceEvent& event) { return event.on_gpu(); });
}

// CUPTI keeps so much and no more: steps after its last kernel are no steps without work.
void DropStepsWithoutWork(Recording& recording, channel::StepTable& notes) {
  int64_t last = 0;
  for (const TraceEvent& event : recording.events) {
    if (event.on_gpu()) last = std::max(last, event.begin_ns);
  }
  const auto dropped = std::erase_if(
      recording.steps, [&](const Recording::Step& step) { return step.begin_ns > last; });
  if (dropped == 0) return;
  notes.notes.push_back(
      fmt::format("the GPU's records were full before the last {} steps: ask for fewer", dropped));
}

}  // namespace

void StepProfile::Ask(const channel::Command& command) {
  const std::string folder =
      channel::RecordingFolder(options_.attempt_dir, command.id, options_.rank);
  if (!io::Exists(folder)) return;  // other ranks are asked
  if (wish_ && wish_->begun) Drop();
  wish_ = Wish{.folder = folder,
               .steps = std::clamp<int64_t>(command.steps, 1, channel::kMostRecordedSteps),
               .before = kBefore,
               .after = kAfter};
}

void StepProfile::OnPhase(engine::TrainPhase phase) {
  switch (phase) {
    case engine::TrainPhase::kStep:
      return BeginStep();
    case engine::TrainPhase::kStepDone:
      return EndStep();
    case engine::TrainPhase::kValidation:
      // It may take longer than all that is to be recorded, and fill the memory.
      if (wish_ && wish_->begun) EndEarly("a validation followed");
      return;
    case engine::TrainPhase::kDelivery:
      return EndEarly("the training ended");
    case engine::TrainPhase::kOwnWorkDone:
    case engine::TrainPhase::kCheckpoint:
      return;
  }
}

void StepProfile::BeginStep() {
  if (!options_.file.empty() && steps_ + 1 == kFixedStep && !wish_) wish_ = Wish{.steps = 1};
  if (wish_ && !wish_->begun && Withdrawn()) wish_.reset();
  if (wish_ && !wish_->begun) Start();
  step_begun_ = clock_.Mono();
}

void StepProfile::EndStep() {
  ++steps_;
  if (!wish_ || !wish_->begun) {
    times_.push_back(SecondsOf(clock_.Mono() - step_begun_));
    if (times_.size() > kMedianOver) times_.pop_front();
    return;
  }
  if (Withdrawn()) return Drop();
  if (++wish_->recorded == wish_->before + wish_->steps + wish_->after) Finish("");
}

void StepProfile::EndEarly(const std::string& why) {
  if (!wish_) return;
  if (wish_->begun && wish_->recorded > 0) {
    const int64_t kept = std::max<int64_t>(wish_->recorded - wish_->before, 1);
    return Finish(
        kept >= wish_->steps ? "" : fmt::format("{} of {} steps: {}", kept, wish_->steps, why));
  }
  if (wish_->begun) return Drop();
  Refuse(*std::exchange(wish_, std::nullopt), why + " before another step");
}

bool StepProfile::Withdrawn() const { return !wish_->folder.empty() && !io::Exists(wish_->folder); }

void StepProfile::Start() {
  const MonoTime begun = clock_.Mono();
  try {
    StartProfiler(options_.gpu);
  } catch (const std::exception& error) {
    return Refuse(*std::exchange(wish_, std::nullopt),
                  fmt::format("the profiler did not start: {}", error.what()));
  }
  wish_->begun = true;
  wish_->step_before = MedianStep();
  wish_->stall = clock_.Mono() - begun;
}

void StepProfile::Drop() {
  try {
    profiler::disableProfiler();
  } catch (const std::exception& error) {
    fmt::print(stderr, "a recording of steps ended with: {}\n", error.what());
  }
  wish_.reset();
}

void StepProfile::Finish(const std::string& note) {
  Wish wish = *std::exchange(wish_, std::nullopt);
  const MonoTime begun = clock_.Mono();
  std::shared_ptr<profiler::ProfilerResult> result;
  try {
    // CUPTI gives what has ended.
    if (options_.gpu) options_.synchronize();
    result = profiler::disableProfiler();
  } catch (const std::exception& error) {
    return Refuse(wish, fmt::format("the profiler failed: {}", error.what()));
  }
  wish.stall += clock_.Mono() - begun;
  writing_.Start([options = options_, wish, note, result](const std::atomic<bool>&) mutable {
    try {
      channel::StepTable about;
      if (!note.empty()) about.notes.push_back(note);
      Recording recording = RecordingOf(*result, options.gpu, wish.before, wish.steps);
      result.reset();
      if (options.gpu && !HasGpuWork(recording)) {
        return Refuse(wish,
                      "CUPTI recorded nothing of the GPU: the log of the rank says why; where the "
                      "driver lets only administrators profile, load it with "
                      "NVreg_RestrictProfilingToAdminUsers=0");
      }
      if (options.gpu) DropStepsWithoutWork(recording, about);
      if (recording.steps.empty()) return Refuse(wish, "no whole step was recorded");
      channel::StepTable table = TableOf(recording);
      table.rank = options.rank;
      table.device = options.device;
      table.notes = about.notes;
      table.stall = SecondsOf(wish.stall);
      table.step_before = wish.step_before;
      if (wish.folder.empty()) {
        const absl::Status written = WriteTraceFile(recording, options.file, table);
        if (!written.ok()) return Refuse(wish, std::string(Message(written)));
        fmt::print("wrote the trace of step {} to {}\n", table.first_step, options.file);
      } else {
        const absl::Status written =
            WriteTrace(recording, wish.folder + "/trace", data::kMostTraceBytes, table);
        written.ok() ? Answer(wish, table) : Refuse(wish, std::string(Message(written)));
      }
    } catch (const std::exception& error) {
      Refuse(wish, error.what());
    }
  });
}

// Where the folder is gone nobody waits.
void StepProfile::Answer(const Wish& wish, const channel::StepTable& table) {
  const absl::Status written =
      io::WriteFileAtomic(wish.folder + "/table.json", channel::ToJson(table));
  if (written.ok() || !io::Exists(wish.folder)) return;
  fmt::print(stderr, "a recording of steps was not written: {}\n", Message(written));
}

void StepProfile::Refuse(const Wish& wish, const std::string& why) {
  if (!wish.folder.empty()) return Answer(wish, {.error = why});
  fmt::print(stderr, "no trace of step {}: {}\n", kFixedStep, why);
}

double StepProfile::MedianStep() const {
  if (times_.empty()) return 0;
  std::vector<double> times(times_.begin(), times_.end());
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace sft::rank
