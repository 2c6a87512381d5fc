#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "worker/engine/checkpoint/safetensors.h"
#include "worker/engine/weights/host_lane.h"

namespace sft::engine {

// Brings tensors of a model's files to a device: the rank's threads read one buffer of pinned
// memory full, in pieces side by side, while another is on its way. A copy from mapped memory, with
// its page faults and its second copy by the driver, is a single thread's. Thread-compatible.
class WeightReader {
 public:
  // `buffer_bytes` of host memory in each of two buffers.
  explicit WeightReader(at::Device device, int64_t buffer_bytes = int64_t{64} << 20);
  ~WeightReader();
  WeightReader(const WeightReader&) = delete;
  WeightReader& operator=(const WeightReader&) = delete;

  // Elements [first, first + count) of the flattened tensor, of the type stored, on the device,
  // ready for what the current stream does next. Throws UserError when the file is shorter than its
  // header says by now, InfrastructureError when it cannot be read.
  at::Tensor Read(const ModelFiles& files, std::string_view name, int64_t first, int64_t count);

 private:
  static constexpr int kBuffers = 2;

  at::Device device_;
  HostLane lane_;
  std::array<at::Tensor, kBuffers> buffers_;  // bytes
  int next_ = 0;
};

}  // namespace sft::engine
