#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "worker/gpus/gpu_probe.h"

namespace sft::worker {

// Which of the machine's GPUs a worker offers, in the order in which they were named. Numbers count
// as nvidia-smi counts; the first readings bind them to UUIDs, since a GPU that falls off the bus
// moves those after it up. Thread-compatible.
class GpuSelection {
 public:
  // Of --gpus, or where that is empty of CUDA_VISIBLE_DEVICES, or where that is not set, all.
  // INVALID_ARGUMENT names what cannot be read.
  static absl::StatusOr<GpuSelection> Open(const std::string& option,
                                           const std::optional<std::string>& visible);

  // One reading for each selected GPU, in the same place each time: for one that is not listed, or
  // not any more, with an error. INVALID_ARGUMENT, from the first readings alone: none of those
  // that --gpus names is there, a UUID is begun by several, or one GPU is named twice.
  absl::StatusOr<std::vector<GpuReading>> Choose(std::vector<GpuReading> readings);

  // "--gpus 0,2"; empty: all.
  std::string Text() const;

 private:
  struct Selected {
    std::string name;             // a number, or the beginning of a UUID
    std::optional<size_t> place;  // where it was listed at first
    std::string uuid;             // empty: not known yet
  };

  std::string_view Source() const;
  absl::Status Bind(const std::vector<GpuReading>& readings);
  // Where the GPU is listed now.
  std::optional<size_t> Find(const Selected& each, const std::vector<GpuReading>& readings) const;

  bool given_ = false;  // as an option
  bool all_ = true;
  bool bound_ = false;
  std::vector<Selected> selected_;
};

}  // namespace sft::worker
