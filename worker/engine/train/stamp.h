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

// What a stamp says of the trained weights' form: [training] mode and [lora]; the rest is default.
// Throws InfrastructureError "checkpoint_damaged" for values that no job has.
spec::JobSpec TrainedSpec(const Stamp& stamp);
// The type in which a full model of that training is written.
at::ScalarType StampedComputeType(const Stamp& stamp);
// Throws UserError "checkpoint_mismatch" where the base in `model_dir` is not the one that was
// trained on.
void CheckModelOf(const Stamp& stamp, const std::filesystem::path& model_dir);

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
