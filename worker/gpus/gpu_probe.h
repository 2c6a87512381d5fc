#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::worker {

// NVML's data about one GPU.
struct GpuReading {
  std::string name;  // "NVIDIA H100 80GB HBM3"
  std::string uuid;  // "GPU-..."
  int64_t memory_bytes = 0;
  int64_t memory_used_bytes = 0;
  int utilization_percent = 0;
  double power_watts = 0;       // 0: not known
  int temperature_celsius = 0;  // 0: not known
  std::string pci;              // "0000:18:00", as in the kernel's messages; empty: not known
  // The action that the driver requires before the GPU is used again; empty: none.
  std::string recovery;
  std::string driver;                   // its version
  int active_links = 0;                 // NVLink links
  bool links_to_switch = false;         // so it reaches every other GPU that has one
  std::vector<std::string> link_peers;  // GPUs at the other ends, by `pci`
  std::string cluster;                  // of an NVLink fabric over several nodes; empty: none
  // Why it could not be read, in NVML's words, for example because it fell off the bus. The rest
  // may be empty then.
  std::string error;
};

// The text of NVML's GPU recovery action: "reset the GPU" for 1, and so on; empty for 0, none.
std::string RecoveryText(int action);
// Shortens NVML's "00000000:18:00.0" to "0000:18:00".
std::string ShortPci(std::string_view bus_id);

// The GPU type of a product name, as variants use it: "H100" for "NVIDIA H100 80GB HBM3", "RTX4090"
// for "NVIDIA GeForce RTX 4090".
std::string GpuTypeOf(std::string_view product_name);

// Queries NVML (libnvidia-ml.so.1) in this process and prints one JSON line; returns the exit code.
// It may hang in the driver: run it as a child process, through ProbeGpus.
int GpuProbeMain();

// Parses the line of GpuProbeMain, in NVML's order. A machine without the library has no GPUs: an
// empty list. If a single GPU cannot be read, its reading has an error.
absl::StatusOr<std::vector<GpuReading>> ParseGpuProbe(std::string_view line);

// Runs `program probe-gpus` with a deadline. An error is a fact about the node: the driver does not
// answer.
absl::StatusOr<std::vector<GpuReading>> ProbeGpus(const std::string& program);

}  // namespace sft::worker
