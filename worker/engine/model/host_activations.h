#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "worker/engine/model/decoder_block.h"
#include "worker/engine/weights/host_lane.h"

namespace sft::engine {

// The rows that blocks keep for their backward (from plan::Recompute::kNorms on), in host memory
// from their forward to their backward. Copies run beside the computation, on a stream of their
// own; the computation waits for one only where that takes longer than a block. The host's memory
// is pinned, and kept for the next micro-batch. Used by one thread.
class HostActivations {
 public:
  // Room is made at once for micro-batches of `most_tokens`; 0: they grow.
  HostActivations(at::Device device, size_t layers, int64_t most_tokens);

  static constexpr int kTensors = 11;  // rows of a block

  // Starts to take the rows that `saved` holds to the host, and lets the device's go once they are
  // there. The copy before this one is done when the computation goes on.
  void Put(size_t layer, DecoderBlock::Saved& saved);
  // Starts to bring them back into `saved`, as they were.
  void Fetch(size_t layer, DecoderBlock::Saved& saved);
  // The computation goes on after all copies so far.
  void Await();

  // Bytes of host memory that are held.
  int64_t Bytes() const;

 private:
  // A tensor's bytes on the host, and how it lay on the device.
  struct Place {
    at::Tensor bytes;
    std::vector<int64_t> sizes, strides;
    at::ScalarType type = at::kFloat;
    int64_t span = 0;  // elements; 0: there was none
  };
  // Its elements there.
  static at::Tensor OnHost(const Place& place);

  at::Device device_;
  int64_t most_tokens_;
  HostLane lane_;
  std::vector<std::array<Place, kTensors>> places_;  // by layer
  std::vector<at::Tensor> leaving_;                  // held until their copies are done
};

}  // namespace sft::engine
