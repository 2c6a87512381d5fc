#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "worker/engine/checkpoint/safetensors.h"
#include "worker/engine/weights/host_lane.h"

namespace sft::engine {

// Brings tensors of files to a device or to host memory with all of the rank's threads, which read
// pieces side by side. What goes to a device passes through two buffers of pinned memory: one is
// read full while the other is on its way. A copy from mapped memory, with its page faults and its
// second copy by the driver, is a single thread's. Thread-compatible.
class TensorReader {
 public:
  // `buffer_bytes` of host memory in each of two buffers; none for a CPU.
  explicit TensorReader(at::Device device, int64_t buffer_bytes = int64_t{64} << 20);
  ~TensorReader();
  TensorReader(const TensorReader&) = delete;
  TensorReader& operator=(const TensorReader&) = delete;

  // Fills `to`, of the device or in host memory, contiguous, with the elements of the flattened
  // tensor from `first` on, converted where the types differ; ready for what the current stream
  // does next. Throws UserError when the file is shorter than its header says by now,
  // InfrastructureError when it cannot be read.
  void Read(const SafetensorsFile& file, std::string_view name, int64_t first,
            const at::Tensor& to);
  // Elements [first, first + count), of the type stored, on the device.
  at::Tensor Read(const SafetensorsFile& file, std::string_view name, int64_t first, int64_t count);

 private:
  // Bytes of a tensor in a file, from `first` on.
  struct Source {
    const SafetensorsFile& file;
    std::string_view name;
    int64_t first = 0;
  };
  // Into host memory.
  static void ReadBytes(const Source& source, std::byte* to, int64_t bytes);
  void Send(const Source& source, const at::Tensor& to);

  static constexpr int kBuffers = 2;

  at::Device device_;
  HostLane lane_;
  std::array<at::Tensor, kBuffers> buffers_;  // bytes
  int next_ = 0;
};

}  // namespace sft::engine
