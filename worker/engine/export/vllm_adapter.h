#pragma once

#include <filesystem>

#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/model/config.h"

// Adapters of experts as vLLM reads them. PEFT's files have the adapters of a layer's experts as
// two stacks (checkpoint/adapter_stacks.h). Of most families vLLM wants the linears of each expert
// instead, under the names that the model's files have for them:
//
//   base_model.model.model.layers.0.mlp.experts.3.gate_proj.lora_A.weight [r, in]
//
// Gate and up of an expert have the same first factor, and each half of the rows of the second.

namespace sft::engine {

// Throws UserError naming why vLLM cannot take the adapter in this layout, and what to do instead.
void CheckVllmAdapter(const ModelConfig& config, const Adapter& adapter);

// An adapter to be written so.
struct VllmAdapterOptions {
  std::filesystem::path model_dir;
  std::filesystem::path adapter_dir;
  std::filesystem::path text_dir;  // whose tokenizer and template are put beside it
  std::filesystem::path target;    // replaced whole when it exists
};

// What was written.
struct VllmAdapter {
  int64_t linears = 0;  // those of experts each by itself
  int rank = 0;
};

// Writes the adapter in this layout, in the type of its factors, and reads it back: each expert's
// factors, and all others, are those of the adapter, to the last bit. Throws as CheckVllmAdapter
// and WriteAdapter.
VllmAdapter WriteVllmAdapter(const VllmAdapterOptions& options);

}  // namespace sft::engine
