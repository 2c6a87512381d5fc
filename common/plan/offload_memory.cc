#include "common/plan/offload_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/bytes.h"

namespace sft::plan {
namespace {

// Memory of a rank beside its masters and states: libraries, pinned buffers of the driver and of
// NCCL, rows being read.
constexpr int64_t kProcessBytes = 5'000'000'000;

struct Remedy {
  spec::JobSpec job;
  std::string words;
};

// Data on the host is divided over the ranks, by the same number that divides weights where those
// are divided.
template <typename Add>
void AddDivision(const spec::JobSpec& job, const Add& add) {
  if (job.compute.gpu_count == 1 || job.parallelism.sharding != spec::Sharding::kDdp) return;
  if (job.parallelism.offload_param) {
    add([](spec::JobSpec& j) { j.parallelism.sharding = spec::Sharding::kFullShard; },
        "fsdp = true");
  } else {
    add([](spec::JobSpec& j) { j.parallelism.sharding = spec::Sharding::kZero2; },
        "deepspeed_stage = 2");
  }
}

std::vector<Remedy> Remedies(const spec::JobSpec& job) {
  std::vector<Remedy> remedies;
  const auto add = [&](const auto& change, std::string words) {
    remedies.push_back({job, std::move(words)});
    change(remedies.back().job);
  };
  if (!job.parallelism.offload_optimizer) {
    AddDivision(job, add);
    return remedies;
  }
  if (job.parallelism.offload_param) {
    add([](spec::JobSpec& j) { j.parallelism.offload_param = false; }, "offload_param = false");
  }
  add([](spec::JobSpec& j) { j.hyperparameters.optimizer = spec::Optimizer::kAdamWBf16; },
      "optimizer = \"adamw_bf16\"");
  add([](spec::JobSpec& j) { j.hyperparameters.optimizer = spec::Optimizer::kAdamW8bit; },
      "optimizer = \"adamw_8bit\"");
  add(
      [](spec::JobSpec& j) {
        j.hyperparameters.optimizer = spec::Optimizer::kAdamW8bit;
        j.hyperparameters.master_weights = spec::MasterWeights::kBf16;
      },
      "optimizer = \"adamw_8bit\" with master_weights = \"bf16\"");
  AddDivision(job, add);
  if (job.full_finetune()) {
    add([](spec::JobSpec& j) { j.training.mode = spec::Mode::kLora; }, "mode = \"lora\"");
  }
  return remedies;
}

std::string WhatFits(const PlanInput& input, int64_t row_tokens) {
  std::string text;
  for (const Remedy& remedy : Remedies(input.job)) {
    const auto problem = MakeProblem(input.shape, remedy.job, row_tokens);
    if (!problem.ok() || HostBytes(*problem) > input.host_bytes) continue;
    text += fmt::format("{} ({}), or ", remedy.words, BytesText(HostBytes(*problem)));
  }
  const auto& asked = input.job.parallelism;
  if (!asked.offload_param) return text + "offload_optimizer = false";
  return text + (asked.offload_optimizer ? "offload_optimizer and offload_param = false"
                                         : "offload_param = false");
}

// Keys of the job that need host memory.
std::string Keys(const spec::JobSpec& job) {
  const std::string table = "hyperparameters.parallelism.";
  std::string keys;
  if (job.parallelism.offload_optimizer) keys = table + "offload_optimizer = true";
  if (!job.parallelism.offload_param) return keys;
  return keys.empty() ? table + "offload_param = true" : keys + " with offload_param = true";
}

}  // namespace

int64_t HostBytesOfRank(int64_t available_bytes, int64_t ranks) {
  return std::max<int64_t>(1, available_bytes / std::max<int64_t>(ranks, 1) - kProcessBytes);
}

int64_t FreeHostBytes(int64_t bytes_of_rank) { return bytes_of_rank + kProcessBytes; }

absl::Status CheckHostMemory(const PlanInput& input, const Problem& problem) {
  const int64_t needed = HostBytes(problem);
  if (input.host_bytes == 0 || needed <= input.host_bytes) return absl::OkStatus();
  const Memory& held = problem.held;
  const int64_t states = held.host_masters + held.host_optimizer;
  std::string parts;
  const auto add = [&](const char* name, int64_t bytes) {
    if (bytes == 0) return;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, BytesText(bytes));
  };
  add("weights", held.host_weights);
  add("master weights", held.host_masters);
  add("optimizer states", held.host_optimizer);
  add("buffers", needed - held.host_weights - states);
  return ResourceExhausted(fmt::format(
      "{} needs {} of host memory for each rank ({}), and the node has {} left for each. "
      "What would fit: {}",
      Keys(input.job), BytesText(needed), parts, BytesText(input.host_bytes),
      WhatFits(input, problem.row_tokens)));
}

}  // namespace sft::plan
