#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

namespace sft::engine {

// Copies between a device and host memory beside the computation, in the order in which they are
// started, on a stream of its own. Each copy belongs to a slot, by which the host waits for it. On
// a CPU a copy is done when Start returns. Thread-compatible.
class HostLane {
 public:
  HostLane(at::Device device, int slots);

  // Copies started from now on come after all that the computation has enqueued so far.
  void Follow();
  // to := from, converted where the types differ (on the device alone). Host memory is pinned, and
  // is not to be touched before WaitOnHost.
  void Start(int slot, const at::Tensor& to, const at::Tensor& from);
  // Blocks until the copies of `slot` are done.
  void WaitOnHost(int slot);
  // The computation goes on after all copies started so far.
  void Join();

 private:
  at::Device device_;
  std::optional<c10::Stream> stream_;  // none on a CPU
  std::vector<c10::Event> done_;       // by slot
  std::optional<c10::Event> computed_, copied_;
};

// Host memory that a device copies from and to by itself; plain memory where the device is a CPU.
at::Tensor PinnedBuffer(int64_t elements, at::ScalarType type, at::Device device);

// Zeros of such memory, or of the device's.
at::Tensor ZeroBuffer(int64_t elements, at::ScalarType type, at::Device device, bool on_host);

}  // namespace sft::engine
