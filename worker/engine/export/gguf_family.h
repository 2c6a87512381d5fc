#pragma once

#include <string>
#include <string_view>

#include "worker/engine/model/config.h"

// What llama.cpp calls the families that are written as GGUF, and what it cannot do of theirs.

namespace sft::engine {

// A family's architecture in llama.cpp, and how its tensors differ from the model's.
struct GgufFamily {
  std::string_view family;
  std::string_view architecture;
  // Rows of queries and keys stand in the order in which its rope turns them: neighbours, not
  // halves.
  bool turned = false;
  bool biases = false;  // of linears, besides those that the family always has
  // Norms behind the sub-layers have the names that others give to those before the next.
  bool norms_behind = false;
  // It has windows itself, so that texts longer than one are no different.
  bool windows = false;
};

// Null for a family that llama.cpp is not known to run like transformers.
const GgufFamily* FindGgufFamily(std::string_view family);

// Throws UserError naming what llama.cpp does otherwise, or cannot, as far as config.json shows.
void CheckGgufFamily(const ModelConfig& config);

// "blk.3.attn_q.weight" of "model.layers.3.self_attn.q_proj.weight"; empty: it has no name there.
std::string GgufName(const ModelConfig& config, std::string_view name);

// The rope of the layers that see all tokens: the one that a GGUF file describes.
const plan::RopeOptions& MainRope(const ModelConfig& config);

[[noreturn]] void RefuseGguf(const std::string& what);

}  // namespace sft::engine
