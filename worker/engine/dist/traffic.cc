#include "worker/engine/dist/traffic.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "common/base/duration.h"

namespace sft::engine {
namespace {

c10::Stream CurrentStream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

size_t TrafficMeter::Axis(std::string_view name) {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found != names_.end()) return static_cast<size_t>(found - names_.begin());
  names_.emplace_back(name);
  return names_.size() - 1;
}

void TrafficMeter::BeginStep() {
  for (Wait& wait : step_.waits) {  // of a step that was not ended
    spare_.push_back(std::move(wait.begin));
    spare_.push_back(std::move(wait.end));
  }
  step_ = {.begun = clock_.Mono(), .sums = std::vector<Sum>(names_.size())};
  if (!device_.is_cpu()) stream_ = CurrentStream(device_);
  open_ = true;
}

void TrafficMeter::EndStep() {
  if (!open_) return;
  open_ = false;
  step_.seconds = SecondsOf(clock_.Mono() - step_.begun);
  std::swap(last_, step_);
}

c10::Event TrafficMeter::TakeEvent() {
  // With this flag events of CUDA have times.
  if (spare_.empty()) return c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  c10::Event event = std::move(spare_.back());
  spare_.pop_back();
  return event;
}

void TrafficMeter::AddBytes(size_t axis, double bytes) {
  if (!open_) return;
  if (step_.sums.size() <= axis) step_.sums.resize(axis + 1);
  step_.sums[axis].bytes += bytes;
}

void TrafficMeter::BeginWait() {
  if (!open_) return;
  if (device_.is_cpu()) {
    wait_begun_ = clock_.Mono();
  } else if (CurrentStream(device_) == *stream_) {
    wait_event_.emplace(TakeEvent());
    wait_event_->record(*stream_);
  }
}

void TrafficMeter::EndWait(size_t axis) {
  if (wait_begun_ && open_) {
    if (step_.sums.size() <= axis) step_.sums.resize(axis + 1);
    step_.sums[axis].seconds += SecondsOf(clock_.Mono() - *wait_begun_);
  }
  wait_begun_.reset();
  if (!wait_event_) return;
  c10::Event end = TakeEvent();
  end.record(*stream_);
  step_.waits.push_back({axis, *std::move(wait_event_), std::move(end)});
  wait_event_.reset();
}

std::vector<AxisTraffic> TrafficMeter::LastStep() {
  if (last_.seconds <= 0) return {};
  for (Wait& wait : last_.waits) {
    // Long past: the next step's loss, which came after it on this stream, has been read.
    wait.end.synchronize();
    if (last_.sums.size() <= wait.axis) last_.sums.resize(wait.axis + 1);
    last_.sums[wait.axis].seconds += wait.begin.elapsedTime(wait.end) / 1e3;
    spare_.push_back(std::move(wait.begin));
    spare_.push_back(std::move(wait.end));
  }
  last_.waits.clear();
  std::vector<AxisTraffic> result;
  for (size_t axis = 0; axis < last_.sums.size(); ++axis) {
    const Sum& sum = last_.sums[axis];
    if (sum.bytes <= 0 && sum.seconds <= 0) continue;
    result.push_back({.axis = names_[axis],
                      .exposed_share = std::min(1.0, sum.seconds / last_.seconds),
                      .gigabytes_per_second = sum.bytes / last_.seconds / 1e9});
  }
  return result;
}

}  // namespace sft::engine
