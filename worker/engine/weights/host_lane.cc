#include "worker/engine/weights/host_lane.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/weights/side_stream.h"

namespace sft::engine {

HostLane::HostLane(at::Device device, int slots) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = StreamsOf(device).getStreamFromGlobalPool(device);
  computed_.emplace(device.type());
  copied_.emplace(device.type());
  for (int i = 0; i < slots; ++i) done_.emplace_back(device.type());
}

void HostLane::Follow() {
  if (!stream_) return;
  computed_->record(StreamsOf(device_).getStream(device_));
  computed_->block(*stream_);
}

void HostLane::Start(int slot, const at::Tensor& to, const at::Tensor& from) {
  if (!stream_) {
    to.copy_(from);
    return;
  }
  const c10::StreamGuard on_the_lane(*stream_);
  to.copy_(from, /*non_blocking=*/true);
  done_[slot].record(*stream_);
}

void HostLane::WaitOnHost(int slot) {
  // An event that was never recorded is done.
  if (stream_) done_[slot].synchronize();
}

void HostLane::Join() {
  if (!stream_) return;
  copied_->record(*stream_);
  copied_->block(StreamsOf(device_).getStream(device_));
}

at::Tensor PinnedBuffer(int64_t elements, at::ScalarType type, at::Device device) {
  const at::Tensor like = at::empty({0}, at::TensorOptions(device).dtype(at::kByte));
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  return ops::EmptyPinned(like, elements * size).view(type);
}

at::Tensor ZeroBuffer(int64_t elements, at::ScalarType type, at::Device device, bool on_host) {
  if (on_host) return PinnedBuffer(elements, type, device).zero_();
  return at::zeros({elements}, at::TensorOptions(device).dtype(type));
}

}  // namespace sft::engine
