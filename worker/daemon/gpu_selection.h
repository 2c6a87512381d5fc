#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "worker/daemon/gpu_probe.h"

namespace sft::worker {

// Which of the machine's GPUs a worker offers. Numbers count as nvidia-smi counts; they are bound
// to UUIDs by the first readings, since a GPU that falls off the bus moves those after it up.
// Thread-compatible.
class GpuSelection {
 public:
  // Of --gpus, or where that is empty of CUDA_VISIBLE_DEVICES, or where that is not set, all.
  // INVALID_ARGUMENT names what cannot be read.
  static absl::StatusOr<GpuSelection> Open(const std::string& option,
                                           const std::optional<std::string>& visible);

  // Those of the readings that were selected, in their order. INVALID_ARGUMENT, from the first
  // readings alone, names what fits none of them, or more than one.
  absl::StatusOr<std::vector<GpuReading>> Choose(std::vector<GpuReading> readings);

  // "--gpus 0,2"; empty: all.
  std::string Text() const;

 private:
  struct Bound {
    size_t place = 0;
    std::string uuid;  // empty: could not be read yet
  };

  absl::Status Bind(const std::vector<GpuReading>& readings);
  bool Has(size_t place, const GpuReading& reading);

  std::string source_;               // "--gpus"
  std::vector<std::string> wanted_;  // numbers and beginnings of UUIDs
  bool all_ = true;
  bool bound_ = false;
  std::vector<Bound> selected_;
};

}  // namespace sft::worker
