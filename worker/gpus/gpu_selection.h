#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "worker/gpus/gpu_probe.h"

namespace sft::worker {

// The GPUs that a worker offers, in the order in which they were named. Numbers count as in
// nvidia-smi; the first readings bind them to UUIDs, because a GPU that falls off the bus shifts
// those after it. Thread-compatible.
class GpuSelection {
 public:
  // Parses --gpus or, if that is empty, CUDA_VISIBLE_DEVICES or, if that is not set, selects all.
  // INVALID_ARGUMENT names what cannot be parsed.
  static absl::StatusOr<GpuSelection> Open(const std::string& option,
                                           const std::optional<std::string>& visible);

  // One reading per selected GPU, always in the same place; a GPU that is not listed, or no longer,
  // gets a reading with an error. INVALID_ARGUMENT, only for the first readings: no GPU that --gpus
  // names exists, a UUID prefix matches several, or one GPU is named twice.
  absl::StatusOr<std::vector<GpuReading>> Choose(std::vector<GpuReading> readings);

  // "--gpus 0,2"; empty: all.
  std::string Text() const;

 private:
  struct Selected {
    std::string name;             // a number, or a prefix of a UUID
    std::optional<size_t> place;  // its place in the first listing
    std::string uuid;             // empty: not known yet
  };

  std::string_view Source() const;
  absl::Status Bind(const std::vector<GpuReading>& readings);
  // The GPU's place in this listing.
  std::optional<size_t> Find(const Selected& each, const std::vector<GpuReading>& readings) const;

  bool given_ = false;  // by the option
  bool all_ = true;
  bool bound_ = false;
  std::vector<Selected> selected_;
};

}  // namespace sft::worker
