#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::worker {

// What NVML says of one GPU.
struct GpuReading {
  std::string name;  // "NVIDIA H100 80GB HBM3"
  std::string uuid;  // "GPU-..."
  int64_t memory_bytes = 0;
  int64_t memory_used_bytes = 0;
  int utilization_percent = 0;
  std::string pci;  // "0000:18:00", as the kernel's messages name it; empty: not known
  // What the driver asks for before the GPU is used again; empty: nothing.
  std::string recovery;
  std::string driver;                   // its version
  int active_links = 0;                 // of NVLink
  bool links_to_switch = false;         // and so to every other GPU that has one
  std::vector<std::string> link_peers;  // GPUs at the other ends, as `pci`
  std::string cluster;                  // of a fabric over several nodes; empty: none
  // Why it could not be read, in NVML's words: it fell off the bus. The rest may be empty then.
  std::string error;
};

// "reset the GPU" for NVML's GPU recovery action 1, and so on; empty for 0, none.
std::string RecoveryText(int action);
// "0000:18:00" of NVML's "00000000:18:00.0".
std::string ShortPci(std::string_view bus_id);

// "H100" of "NVIDIA H100 80GB HBM3", "RTX4090" of "NVIDIA GeForce RTX 4090": how variants name it.
std::string GpuTypeOf(std::string_view product_name);

// Asks NVML (libnvidia-ml.so.1) in this process and prints one JSON line; the exit code of the
// process. It may hang in the driver: run it as a child, by ProbeGpus.
int GpuProbeMain();

// The line of GpuProbeMain, in NVML's order. A machine without the library has no GPUs: an empty
// list. A GPU that alone cannot be read is a reading with an error.
absl::StatusOr<std::vector<GpuReading>> ParseGpuProbe(std::string_view line);

// Runs `program probe-gpus` with a deadline. An error is a finding about the node: the driver does
// not answer.
absl::StatusOr<std::vector<GpuReading>> ProbeGpus(const std::string& program);

}  // namespace sft::worker
