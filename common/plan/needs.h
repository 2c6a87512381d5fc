#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/model_config.h"

// What a model needs to be fine-tuned, before anybody has written a job for it: the plans
// (plan.h) of a few usual jobs.

namespace sft::plan {

// Rows of the two kinds of job, in tokens; shorter where the model has fewer positions.
inline constexpr int kSmallestRow = 512;
inline constexpr int kFastestRow = 2048;
// More than models have: plans of more would take seconds.
inline constexpr int64_t kMostPlannedLayers = 160;

// One usual job on GPUs of one type.
struct Need {
  std::string method;     // "QLoRA", "LoRA" or "full"
  bool smallest = false;  // as little memory as it takes; else as fast as the GPUs allow
  int sequence_length = 0;
  int gpus = 0;  // the fewest, weights cut over more than one (fsdp); 0: 64 are too few, whose
                 // memory it is then
  int64_t memory_bytes = 0;      // of each GPU, the driver's and the libraries' included
  double tokens_per_second = 0;  // all GPUs together; 0: not predicted
};

// What fine-tuning needs on GPUs of `gpu_type` with `gpu_memory` bytes: at the smallest, QLoRA with
// one short row a micro-batch and everything recomputed; at the fastest, LoRA and full fine-tuning
// with four rows a GPU, or QLoRA alone where the weights are stored in 4 bits. Empty for a model of
// more than kMostPlannedLayers.
std::vector<Need> NeedsOf(const ModelConfig& model, std::string_view gpu_type, int64_t gpu_memory);

// How the files hold the weights, for people: "bf16", "FP8", "bnb 4-bit". `bytes` of all files, for
// a config.json that does not name the type; 0: not known.
std::string StoredText(const ModelConfig& model, int64_t bytes);

}  // namespace sft::plan
