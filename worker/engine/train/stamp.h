#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/data/dataset.h"

namespace sft::engine {

// Inputs of a stamp.
struct StampSource {
  const spec::JobSpec& spec;
  std::filesystem::path model_dir;
  const Dataset& train;
  const Dataset* validation = nullptr;
  std::string tokenizer;  // ChatTokenizer::digest
  int64_t total_steps = 0;
  at::Device device = at::kCPU;
};

// The same on every rank and for every way to divide a job over ranks. Reads the tokens of the data
// and, of the model, its configuration, the headers of its weights and three pages of each tensor.
Stamp MakeStamp(const StampSource& source);

// A way in which a job differs from the one that a checkpoint is of.
struct StampDifference {
  std::string text;         // "lora.r is 8, the checkpoint has 16"
  bool acceptable = false;  // the states can be used nevertheless
  bool engine = false;      // the version of the engine
};

// A key that only one of them has is no difference: it is of another version of the engine, which
// is one.
std::vector<StampDifference> Compare(const Stamp& saved, const Stamp& now);

}  // namespace sft::engine
