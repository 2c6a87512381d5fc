#include <string>

#include "common/plan/tensors.h"
#include "worker/engine/base/error.h"
#include "worker/engine/model/decoder_block.h"

namespace sft::engine {
namespace {

// Masks of adapters' dropout are numbered from 0, those of what sub-layers write from kOfOutputs.
constexpr uint64_t kModulesPerLayer = 8, kOfOutputs = uint64_t{1} << 40;
// Those of adapters of shared experts' output gates from here.
constexpr uint64_t kOfOutputGates = uint64_t{1} << 43;

// The projection of the matrix that the linear layer `name` stands in.
Projection BindProjection(const UnitInfo& unit, const char* name, uint64_t first_module) {
  const int weight = unit.Find(unit.name + "." + name + ".weight");
  for (int i = 0; i < static_cast<int>(unit.shared_matrices.size()); ++i) {
    if (unit.shared_matrices[i].front() == weight) return Projection(unit, i, first_module);
  }
  throw InternalError(unit.name + " has no matrix that starts with " + name);
}

// The position of a parameter of a block; -1 where it has none of that name.
int FindIn(const UnitInfo& unit, const char* name, const char* suffix) {
  return name == nullptr ? -1 : unit.Find(unit.name + "." + name + suffix);
}

SelfAttention BindAttention(const ModelConfig& config, const UnitInfo& unit, int64_t layer,
                            uint64_t module) {
  const plan::TensorNames& names = plan::NamesOf(config);
  const plan::LayerShape shape = config.Layer(layer);
  SelfAttention attention;
  attention.qkv = BindProjection(unit, names.q, module);
  attention.o = BindProjection(unit, names.o, module + 3);
  attention.q_norm = FindIn(unit, names.q_norm, ".weight");
  attention.k_norm = FindIn(unit, names.k_norm, ".weight");
  attention.sinks = FindIn(unit, names.sinks, "");
  attention.heads = config.heads;
  attention.kv_heads = shape.kv_heads;
  attention.head_dim = shape.head_dim;
  attention.value_norm = config.value_norm;
  attention.keys_are_values = shape.keys_are_values;
  attention.lends = config.Lends(layer);
  attention.borrows = shape.keys_of >= 0;
  attention.output_gate = config.output_gate;
  attention.window = config.layer_options[layer].window;
  attention.scale = config.attention_scale;
  attention.qk_norm = config.qk_norm;
  attention.norm = ops::NormOptions(config.norm_epsilon, config.norm);
  attention.dropout = config.attention_dropout;
  attention.dropout_module = kOfOutputs + module;
  return attention;
}

DeltaNet BindDelta(const ModelConfig& config, const UnitInfo& unit, uint64_t module) {
  const plan::TensorNames& names = plan::NamesOf(config);
  DeltaNet delta;
  delta.in = BindProjection(unit, names.delta_qkv, module);
  delta.out = BindProjection(unit, names.delta_out, module + 7);
  delta.conv = FindIn(unit, names.delta_conv, ".weight");
  delta.a_log = FindIn(unit, names.delta_a_log, "");
  delta.dt_bias = FindIn(unit, names.delta_dt_bias, "");
  delta.norm = FindIn(unit, names.delta_norm, ".weight");
  delta.key_heads = config.delta.key_heads;
  delta.value_heads = config.delta.value_heads;
  delta.key_size = config.delta.key_size;
  delta.value_size = config.delta.value_size;
  delta.epsilon = config.norm_epsilon;
  delta.by_key_head = names.delta_z == nullptr;
  return delta;
}

}  // namespace

DecoderBlock DecoderBlock::Bind(const ModelConfig& config, const UnitInfo& unit, int64_t layer) {
  const plan::TensorNames& names = plan::NamesOf(config);
  const auto find = [&](const char* name, const char* suffix) {
    return FindIn(unit, name, suffix);
  };
  const ops::NormOptions options(config.norm_epsilon, config.norm);
  const auto norm = [&](const char* name) {
    return Norm{find(name, ".weight"), find(name, ".bias"), options};
  };
  const uint64_t module = static_cast<uint64_t>(layer) * kModulesPerLayer;
  DecoderBlock block;
  const plan::LayerShape shape = config.Layer(layer);
  if (shape.experts > 0) {
    block.experts = {.router = find(names.router, ".weight"),
                     .router_bias = find(names.router, ".bias"),
                     .correction = find(names.router_correction, ""),
                     .router_norm = {.weight = find(names.router_norm, ""),
                                     .options = ops::NormOptions(config.norm_epsilon)},
                     .expert_scale = find(names.router_expert_scale, ""),
                     .gate_up = ExpertLinear(unit, names.experts_gate_up),
                     .down = ExpertLinear(unit, names.experts_down),
                     .chosen = shape.chosen,
                     .options = config.router,
                     .kind = config.activation};
    block.branches = {norm(names.shared_out_norm), norm(names.experts_norm),
                      norm(names.experts_out_norm)};
    if (shape.shared > 0) {
      block.mlp.gate_up = BindProjection(unit, names.shared_gate, module + 4);
      block.mlp.down = BindProjection(unit, names.shared_down, module + 6);
      if (names.shared_output_gate != nullptr) {
        block.mlp.output_gate =
            BindProjection(unit, names.shared_output_gate, kOfOutputGates + module);
      }
    }
  } else {
    block.mlp.gated = names.gate != nullptr;
    block.mlp.gate_up = BindProjection(unit, block.mlp.gated ? names.gate : names.up, module + 4);
    block.mlp.down = BindProjection(unit, names.down, module + 6);
  }
  block.keys_of = shape.keys_of >= 0 ? shape.keys_of : layer;
  if (shape.delta) {
    block.delta = BindDelta(config, unit, module);
  } else {
    block.attention = BindAttention(config, unit, layer, module);
  }
  block.mlp.kind = config.activation;
  block.attention_ends = {norm(names.attention_norm), norm(names.attention_out_norm),
                          kOfOutputs + module + 1};
  block.mlp_ends = {norm(names.mlp_norm), norm(names.mlp_out_norm), kOfOutputs + module + 2};
  if (config.layer_input > 0) {
    constexpr uint64_t kOfInputs = uint64_t{1} << 42;
    block.input.gate = BindProjection(unit, names.input_gate, kOfInputs + module);
    block.input.projection = BindProjection(unit, names.input_projection, kOfInputs + module + 1);
    block.input.size = config.layer_input;
    block.input.first = layer * config.layer_input;
    block.input.kind = config.activation;
    block.input_ends = {{}, norm(names.input_out_norm), kOfInputs + module + 2};
  }
  block.rope = config.layer_options[layer].rope;
  block.residual_scale = config.residual_scale;
  block.residual_dropout = config.residual_dropout;
  block.scale = find(names.layer_scale, "");
  return block;
}

}  // namespace sft::engine
