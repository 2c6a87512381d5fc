#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sft/v1/job.pb.h"
#include "worker/channel/launch.h"
#include "worker/gpus/kernel_log.h"

namespace sft::worker {

// What the node itself knows of the time in which an attempt ran.
struct HostEvidence {
  // Processes killed in the worker's control group since the launch because memory ran out.
  int64_t oom_kills = 0;
  std::vector<KernelLine> kernel;
  // GPUs of the attempt: what they are called, by PCI address ("0000:18:00").
  std::map<std::string, std::string> gpus;
  // What NVML says against them, by the same names.
  std::map<std::string, std::string> gpu_problems;
};

// Adds what explains the end of the blamed process: a GPU that fell off the bus, a machine whose
// memory ran out. Leaves alone what is the job owner's doing or nobody's. Pure.
void ApplyHostEvidence(const HostEvidence& host, const channel::ShimStatus& status,
                       v1::Verdict& verdict);

}  // namespace sft::worker
