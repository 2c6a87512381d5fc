#pragma once

#include "common/plan/families/family.h"

// What families with gated DeltaNets among their layers share.

namespace sft::plan {

// Reads the rope of a part of each head, the sizes of DeltaNets, and which layers have one: all but
// every fourth, or as layer_types says. Attention has an output gate.
void ReadHybrid(const ConfigReader& config, ModelConfig& model);

// What all of them call a DeltaNet's parameters but the linears of its input.
constexpr TensorNames WithDeltaNets(TensorNames names) {
  names.delta_conv = "linear_attn.conv1d";
  names.delta_a_log = "linear_attn.A_log";
  names.delta_dt_bias = "linear_attn.dt_bias";
  names.delta_norm = "linear_attn.norm";
  names.delta_out = "linear_attn.out_proj";
  names.other_part = "mtp";  // predicts the token after the next
  return names;
}

// The expert that every token goes to, with a gate of what it writes.
constexpr TensorNames WithGatedExpert(TensorNames names) {
  names.shared_gate = "mlp.shared_expert.gate_proj";
  names.shared_up = "mlp.shared_expert.up_proj";
  names.shared_down = "mlp.shared_expert.down_proj";
  names.shared_output_gate = "mlp.shared_expert_gate";
  return names;
}

// Reads its size, of the layers that have experts.
void ReadGatedExpert(const ConfigReader& config, ModelConfig& model);

}  // namespace sft::plan
