#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/engine/model/config.h"
#include "worker/engine/weights/layout.h"

// What llama.cpp calls the families that are written as GGUF, and their tensors.

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
  bool halves = false;  // gates and ups are one linear in the model, two in the file
};

// Null for a family that llama.cpp is not known to run like transformers.
const GgufFamily* FindGgufFamily(std::string_view family);

std::string GgufFamilyNames();  // "llama, mistral, ..."

// "blk.3.attn_q.weight" of "model.layers.3.self_attn.q_proj.weight"; empty: it has no name there.
// Of gates with ups, the gates'.
std::string GgufName(const ModelConfig& config, std::string_view name);

// A tensor of the file, of a parameter: all of it, or of gates with ups one of the two.
struct GgufPart {
  std::string name;  // "blk.3.attn_q.weight"
  std::vector<int64_t>
      shape;  // of a stack [experts, outputs, inputs], of its biases [experts, outputs]
  bool is_half = false;
  bool is_up = false;  // the second half
  size_t outputs = 0;  // the dimension that is halved
};

// What a parameter becomes in the file; empty: llama.cpp has no name for it.
std::vector<GgufPart> GgufParts(const ModelConfig& config, const ParamInfo& param);

// The rope and the heads of the layers that see all tokens: those that the keys of a GGUF file
// describe which do not say otherwise.
const plan::RopeOptions& MainRope(const ModelConfig& config);
plan::LayerShape MainShape(const ModelConfig& config);

}  // namespace sft::engine
