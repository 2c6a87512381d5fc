#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/plan/model_config.h"
#include "common/spec/job_spec.h"
#include "common/spec/resolve.h"

namespace sft::plan {

// Below this many elements 8-bit states are kept in fp32.
inline constexpr int64_t kMinCodedElements = 4096;

// One tensor of a model under a job.
struct Parameter {
  std::string name;  // as in the checkpoint; adapters: "<module>.lora_A.weight"
  int64_t elements = 0;
  bool trainable = false;
  bool quantized = false;     // held in 4 or 8 bits
  bool adapter = false;       // added by LoRA, not part of the base
  int64_t rows = 0;           // outputs of a linear's weight
  bool double_quant = false;  // of weights in 4 bits, the blocks' scales are quantised too
  bool mxfp4 = false;         // quantised: as the checkpoint has it, in MXFP4
};

// The parameters that are gathered, reduced and sharded as one, in the engine's order: the
// embedding, a unit for each block, then final norm and head.
struct Unit {
  std::vector<Parameter> parameters;
};

// The entries of lora.target_modules as they hold for a model with these linears: the default, the
// names of Llama's seven, stands for all linears of a model that names them otherwise; gate_proj
// and up_proj together stand for the stack of gates and ups of a mixture of experts.
std::vector<std::string> EffectiveTargets(const std::vector<std::string>& linears,
                                          const std::vector<std::string>& targets);

// True for a linear of a model with experts that PEFT adapts as a parameter, not as a module: a
// stack, or one of the names that PEFT rewrites to stacks, in dense layers and shared experts. Its
// adapters of parameters have no DoRA and no dropout.
bool PeftAdaptsAsParameter(std::string_view module, int64_t experts);

// PEFT's rule: `target` matches a module's name or its end after a dot; "all-linear" matches every
// linear of the blocks.
bool MatchesTarget(std::string_view module, std::string_view target);

// A request of the job that the model cannot meet, or nullopt: an entry of lora.target_modules that
// matches no linear, a pattern of ranks that counts for none, one of lora.modules_to_save that
// cannot be trained whole, 8-bit states where nothing trained is large enough, anything but QLoRA
// of weights that are stored in 4 bits, and what mixtures of experts do not have: DoRA or dropout
// on a stack, products in FP8.
std::optional<spec::Problem> CheckJob(const ModelShape& shape, const spec::JobSpec& job);

// The job's parameters. InvalidArgument for a problem that CheckJob finds.
absl::StatusOr<std::vector<Unit>> MakeUnits(const ModelShape& shape, const spec::JobSpec& job);

// The same with the parts that a rank has of matrices that are cut (common/plan/tensor.h).
absl::StatusOr<std::vector<Unit>> MakeUnitsOfRank(const ModelShape& shape,
                                                  const spec::JobSpec& job);

// True for a block: neither the embedding nor the head.
inline bool IsBlock(const std::vector<Unit>& units, size_t unit) {
  return unit > 0 && unit + 1 < units.size();
}

// Numbers of weights, all and trained.
struct ParameterCounts {
  int64_t total = 0;      // the base model
  int64_t trainable = 0;  // full fine-tuning: total; LoRA: r * (in + out) for each target
};
ParameterCounts CountParameters(const std::vector<Unit>& units);

// Elements from one row to the next of a matrix with `spare` columns beside its own: a multiple of
// 128 bytes of bf16, or `columns` alone if nothing is spare. Weights and activations have spare
// columns for the adapters beside them.
int64_t RowStride(int64_t columns, int64_t spare);

// The linears of a block that read one input, stored as one matrix
// (worker/engine/weights/layout.h). Of a stack of experts' weights: those of one expert.
struct BlockMatrices {
  struct Matrix {
    int64_t rows = 0;     // outputs of all linears
    int64_t columns = 0;  // inputs
    int64_t rank = 0;     // sum over all adapters
    int64_t experts = 0;  // of a stack
    int64_t weights() const { return rows * columns; }
  };
  Matrix qkv, o, gate_up, down;
  Matrix input_gate, input_projection;  // empty where layers have no input of their own
  // The shared expert, and the gate of its output; empty where there is none.
  Matrix shared_gate_up, shared_down, shared_output_gate;
};
// Those of every block.
std::vector<BlockMatrices> MatricesOf(const ModelShape& shape, const spec::JobSpec& job);

// Parameters of the base alone (TensorsOf).
int64_t BaseParameters(const ModelShape& shape);
// Those of them that a token passes, the embedding's table included: of a layer's experts the ones
// that it goes to. All of a model without experts.
int64_t ActiveParameters(const ModelShape& shape);

}  // namespace sft::plan
