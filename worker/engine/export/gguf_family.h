#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/engine/model/config.h"
#include "worker/engine/weights/layout.h"

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
  // post_attention_layernorm has the name of a norm behind the sub-layer, which others give to that
  // before the next.
  bool norms_behind = false;
  // It has windows itself, so that texts longer than one are no different.
  bool windows = false;
};

// Null for a family that llama.cpp is not known to run like transformers.
const GgufFamily* FindGgufFamily(std::string_view family);

// Throws UserError naming what llama.cpp does otherwise, or cannot, as far as config.json shows.
void CheckGgufFamily(const ModelConfig& config);

// "blk.3.attn_q.weight" of "model.layers.3.self_attn.q_proj.weight"; empty: it has no name there.
// Of experts' gates with ups, the gates'.
std::string GgufName(const ModelConfig& config, std::string_view name);

// A tensor of the file, of a parameter: all of it, or of experts' gates with ups one of the two.
struct GgufPart {
  std::string name;  // "blk.3.attn_q.weight"
  std::vector<int64_t>
      shape;  // of a stack [experts, outputs, inputs], of its biases [experts, outputs]
  bool is_half = false;
  bool is_up = false;  // the second half
};

// What a parameter becomes in the file; empty: llama.cpp has no name for it.
std::vector<GgufPart> GgufParts(const ModelConfig& config, const ParamInfo& param);

// The rope of the layers that see all tokens: the one that a GGUF file describes.
const plan::RopeOptions& MainRope(const ModelConfig& config);

[[noreturn]] void RefuseGguf(const std::string& what);

}  // namespace sft::engine
