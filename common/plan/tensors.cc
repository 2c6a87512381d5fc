#include "common/plan/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/plan/families/family.h"

namespace sft::plan {
namespace {

constexpr std::string_view kModel = "model.";

void AddNormOf(TensorUnit& unit, NormKind kind, const std::string& module, int64_t size) {
  unit.tensors.push_back({module + ".weight", {size}, TensorRole::kNorm});
  if (kind == NormKind::kLayerNorm) {
    unit.tensors.push_back({module + ".bias", {size}, TensorRole::kBias});
  }
}

// Adds the norm `name` of a block, which may have none of that place.
void AddNorm(TensorUnit& unit, NormKind kind, const char* name, int64_t size) {
  if (name == nullptr) return;
  AddNormOf(unit, kind, unit.name + "." + name, size);
}

struct LinearShape {
  std::string module;
  int64_t out = 0;
  std::vector<int64_t> joined = {};  // TensorInfo::joined
};

// Linear layers that read one input of size `in`: the weights first, so that they stand side by
// side in every buffer.
void AddLinears(TensorUnit& unit, const std::vector<LinearShape>& linears, int64_t in, bool bias) {
  std::vector<int> matrix;
  for (const LinearShape& linear : linears) {
    matrix.push_back(static_cast<int>(unit.tensors.size()));
    unit.tensors.push_back({.name = linear.module + ".weight",
                            .shape = {linear.out, in},
                            .role = TensorRole::kLinear,
                            .joined = linear.joined});
  }
  unit.shared_matrices.push_back(std::move(matrix));
  if (!bias) return;
  for (const LinearShape& linear : linears) {
    unit.tensors.push_back({.name = linear.module + ".bias",
                            .shape = {linear.out},
                            .role = TensorRole::kBias,
                            .joined = linear.joined});
  }
}

// The norm before attention, and attention itself.
void AddAttention(TensorUnit& unit, const ModelShape& s, const LayerShape& layer) {
  const TensorNames& names = NamesOf(s);
  const std::string prefix = unit.name + ".";
  const int64_t queries = s.heads * layer.head_dim;
  const int64_t keys = layer.kv_heads * layer.head_dim;
  AddNorm(unit, s.norm, names.attention_norm, s.hidden);
  if (names.k == nullptr) {
    AddLinears(unit, {{prefix + names.q, queries + 2 * keys, {queries, keys, keys}}}, s.hidden,
               s.qkv_bias);
  } else if (layer.keys_of >= 0) {
    AddLinears(unit, {{prefix + names.q, queries}}, s.hidden, s.qkv_bias);
    unit.unused = {prefix + names.k, prefix + names.v, prefix + names.k_norm};
  } else {
    const int64_t gated = s.output_gate ? 2 * queries : queries;
    std::vector<LinearShape> linears{{prefix + names.q, gated}, {prefix + names.k, keys}};
    if (!layer.keys_are_values) linears.push_back({prefix + names.v, keys});
    AddLinears(unit, linears, s.hidden, s.qkv_bias);
  }
  if (s.qk_norm != QkNorm::kNone) {
    const bool whole = s.qk_norm == QkNorm::kWhole;
    AddNorm(unit, s.norm, names.q_norm, whole ? queries : layer.head_dim);
    if (layer.keys_of < 0) AddNorm(unit, s.norm, names.k_norm, whole ? keys : layer.head_dim);
  }
  AddLinears(unit, {{prefix + names.o, s.hidden}}, queries, s.output_bias);
  if (names.sinks != nullptr) {
    unit.tensors.push_back({prefix + names.sinks, {s.heads}, TensorRole::kMixer});
  }
}

// The norm before a gated DeltaNet, and that itself. Published files have what its decay is made of
// and its norm in fp32 beside weights in bf16.
void AddDeltaNet(TensorUnit& unit, const ModelShape& s) {
  const TensorNames& names = NamesOf(s);
  const std::string prefix = unit.name + ".";
  const DeltaShape& delta = s.delta;
  AddNorm(unit, s.norm, names.attention_norm, s.hidden);
  if (names.delta_z == nullptr) {
    AddLinears(unit,
               {{prefix + names.delta_qkv, delta.channels() + delta.values()},
                {prefix + names.delta_b, 2 * delta.value_heads}},
               s.hidden, false);
  } else {
    AddLinears(unit,
               {{prefix + names.delta_qkv, delta.channels()},
                {prefix + names.delta_z, delta.values()},
                {prefix + names.delta_b, delta.value_heads},
                {prefix + names.delta_a, delta.value_heads}},
               s.hidden, false);
  }
  unit.tensors.push_back({prefix + names.delta_conv + ".weight",
                          {delta.channels(), 1, kDeltaConvolution},
                          TensorRole::kMixer});
  unit.tensors.push_back({.name = prefix + names.delta_a_log,
                          .shape = {delta.value_heads},
                          .role = TensorRole::kMixer,
                          .exact = true});
  unit.tensors.push_back({prefix + names.delta_dt_bias, {delta.value_heads}, TensorRole::kMixer});
  AddNorm(unit, NormKind::kRms, names.delta_norm, delta.value_size);
  unit.tensors.back().exact = true;
  AddLinears(unit, {{prefix + names.delta_out, s.hidden}}, delta.values(), false);
}

// A stack of experts' weights, a matrix for itself. `linears`: those of one expert in the files.
void AddStack(TensorUnit& unit, const TensorNames& names, const char* name, const LayerShape& layer,
              int64_t out, int64_t in, const std::vector<const char*>& linears) {
  TensorInfo stack{.name = unit.name + "." + name + ".weight",
                   .shape = {layer.experts * out, in},
                   .role = TensorRole::kLinear,
                   .experts = layer.experts};
  const bool whole = names.experts == nullptr || names.may_be_stacks;
  if (whole) {
    stack.parts.push_back(unit.name + "." + name);
    stack.transposed = names.transposed_stacks;
  }
  for (int64_t expert = 0; names.experts != nullptr && expert < layer.experts; ++expert) {
    for (const char* linear : linears) {
      (whole ? stack.single_parts : stack.parts)
          .push_back(fmt::format("{}.{}.{}.{}.weight", unit.name, names.experts, expert, linear));
    }
  }
  unit.shared_matrices.push_back({static_cast<int>(unit.tensors.size())});
  unit.tensors.push_back(std::move(stack));
  if (!names.experts_bias) return;
  unit.tensors.push_back({.name = unit.name + "." + name + ".bias",
                          .shape = {layer.experts * out},
                          .role = TensorRole::kBias,
                          .experts = layer.experts,
                          .parts = {unit.name + "." + name + "_bias"}});
}

void AddExperts(TensorUnit& unit, const ModelShape& s, const LayerShape& layer) {
  const TensorNames& names = NamesOf(s);
  unit.tensors.push_back(
      {unit.name + "." + names.router + ".weight", {layer.experts, s.hidden}, TensorRole::kRouter});
  if (names.router_bias) {
    unit.tensors.push_back(
        {unit.name + "." + names.router + ".bias", {layer.experts}, TensorRole::kBias});
  }
  if (names.router_correction != nullptr) {
    unit.tensors.push_back({.name = unit.name + "." + names.router_correction,
                            .shape = {layer.experts},
                            .role = TensorRole::kConstant,
                            .exact = true});
  }
  if (names.router_norm != nullptr) {
    unit.tensors.push_back({unit.name + "." + names.router_norm, {s.hidden}, TensorRole::kMixer});
  }
  if (names.router_expert_scale != nullptr) {
    unit.tensors.push_back(
        {unit.name + "." + names.router_expert_scale, {layer.experts}, TensorRole::kMixer});
  }
  AddNorm(unit, s.norm, names.experts_norm, s.hidden);
  AddNorm(unit, s.norm, names.experts_out_norm, s.hidden);
  AddNorm(unit, s.norm, names.shared_out_norm, s.hidden);
  AddStack(unit, names, names.experts_gate_up, layer, 2 * layer.intermediate, s.hidden,
           {names.expert_gate, names.expert_up});
  AddStack(unit, names, names.experts_down, layer, s.hidden, layer.intermediate,
           {names.expert_down});
  if (layer.shared == 0) return;
  const std::string prefix = unit.name + ".";
  AddLinears(unit,
             {{prefix + names.shared_gate, layer.shared}, {prefix + names.shared_up, layer.shared}},
             s.hidden, false);
  AddLinears(unit, {{prefix + names.shared_down, s.hidden}}, layer.shared, false);
  if (names.shared_output_gate == nullptr) return;
  AddLinears(unit, {{prefix + names.shared_output_gate, 1}}, s.hidden, false);
}

void AddMlp(TensorUnit& unit, const ModelShape& s, const LayerShape& layer) {
  const TensorNames& names = NamesOf(s);
  const std::string prefix = unit.name + ".";
  const int64_t size = layer.intermediate;
  if (layer.experts > 0) {
    AddExperts(unit, s, layer);
    return;
  }
  if (names.gate == nullptr) {
    AddLinears(unit, {{prefix + names.up, size}}, s.hidden, s.mlp_bias);
  } else if (names.up == nullptr) {
    AddLinears(unit, {{prefix + names.gate, 2 * size, {size, size}}}, s.hidden, s.mlp_bias);
  } else {
    AddLinears(unit, {{prefix + names.gate, size}, {prefix + names.up, size}}, s.hidden,
               s.mlp_bias);
  }
  AddLinears(unit, {{prefix + names.down, s.hidden}}, size, s.mlp_bias);
}

// What a block does with its own input.
void AddInputLayer(TensorUnit& unit, const ModelShape& s) {
  const TensorNames& names = NamesOf(s);
  const std::string prefix = unit.name + ".";
  AddLinears(unit, {{prefix + names.input_gate, s.layer_input}}, s.hidden, false);
  AddLinears(unit, {{prefix + names.input_projection, s.hidden}}, s.layer_input, false);
  AddNorm(unit, s.norm, names.input_out_norm, s.hidden);
}

// Where the inputs of all layers come from. The projection is no linear of a block: it is neither
// quantised nor adapted.
void AddLayerInputs(TensorUnit& unit, const ModelShape& s) {
  const TensorNames& names = NamesOf(s);
  const int64_t all = s.layers * s.layer_input;
  unit.tensors.push_back({PrefixedName(s.prefix, names.layer_inputs) + ".weight",
                          {s.layer_input_vocab, all},
                          TensorRole::kEmbedding});
  unit.tensors.push_back({PrefixedName(s.prefix, names.layer_inputs_projection) + ".weight",
                          {all, s.hidden},
                          TensorRole::kEmbedding});
  AddNormOf(unit, s.norm, PrefixedName(s.prefix, names.layer_inputs_norm), s.layer_input);
}

}  // namespace

const TensorNames& NamesOf(const ModelShape& shape) {
  const Family* family = FindFamily(shape.family);
  return family == nullptr ? kLlamaNames : family->names;
}

std::string BlockName(const ModelShape& shape, int64_t layer) {
  return PrefixedName(shape.prefix, NamesOf(shape).block) + "." + std::to_string(layer);
}

std::string LastName(std::string_view module) {
  return std::string(module.substr(module.rfind('.') + 1));
}

std::string PrefixedName(std::string_view prefix, std::string_view name) {
  if (!prefix.starts_with(kModel)) return std::string(prefix).append(name);
  if (!name.starts_with(kModel)) return std::string(name);
  return std::string(prefix).append(name.substr(kModel.size()));
}

// A wrapped decoder's "language_model.model.layers.0" of the files runs as
// "model.language_model.layers.0"; the head, "language_model.lm_head", as "lm_head".
std::string RuntimeModule(std::string_view prefix, std::string_view module) {
  if (prefix.empty() || prefix.starts_with(kModel) || !module.starts_with(prefix)) {
    return std::string(module);
  }
  module.remove_prefix(prefix.size());
  if (!module.starts_with(kModel)) return std::string(module);
  module.remove_prefix(kModel.size());
  return std::string(kModel).append(prefix).append(module);
}

std::string CheckpointModule(std::string_view prefix, std::string_view module) {
  // transformers may have loaded the decoder of such files alone.
  constexpr std::string_view kParts[] = {"model.layers.", "model.embed_tokens", "model.norm"};
  const auto begins = [&](std::string_view part) { return module.starts_with(part); };
  if (prefix.starts_with(kModel) && std::ranges::any_of(kParts, begins)) {
    return PrefixedName(prefix, module);
  }
  // Adapters from before transformers 4.52 have the checkpoint's names.
  if (prefix.empty() || prefix.starts_with(kModel) || module.starts_with(prefix)) {
    return std::string(module);
  }
  if (!module.starts_with(kModel)) return std::string(prefix).append(module);
  std::string_view rest = module.substr(kModel.size());
  if (!rest.starts_with(prefix)) return std::string(module);
  rest.remove_prefix(prefix.size());
  return std::string(prefix).append(kModel).append(rest);
}

int64_t TensorInfo::elements() const {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

std::vector<int64_t> ShapeInFiles(std::vector<int64_t> shape, int64_t experts, size_t parts,
                                  bool transposed) {
  if (parts == 1 && experts > 0) {
    shape[0] /= experts;
    shape.insert(shape.begin(), experts);
  } else if (parts > 0) {
    shape[0] /= static_cast<int64_t>(parts);
  }
  if (transposed) std::swap(shape[shape.size() - 2], shape[shape.size() - 1]);
  return shape;
}

std::vector<int64_t> TensorInfo::ShapeInFiles() const {
  return plan::ShapeInFiles(shape, experts, parts.size(), transposed);
}

std::string TensorInfo::module() const { return name.substr(0, name.rfind('.')); }

TensorUnit EmbeddingTensors(const ModelShape& shape) {
  TensorUnit unit{"embedding", {}, {}};
  unit.tensors.push_back({PrefixedName(shape.prefix, NamesOf(shape).embedding) + ".weight",
                          {shape.vocab, shape.hidden},
                          TensorRole::kEmbedding});
  if (shape.learned_positions > 0) {
    unit.tensors.push_back({PrefixedName(shape.prefix, NamesOf(shape).positions) + ".weight",
                            {shape.learned_positions, shape.hidden},
                            TensorRole::kEmbedding});
  }
  if (shape.layer_input > 0) AddLayerInputs(unit, shape);
  return unit;
}

TensorUnit BlockTensors(const ModelShape& s, int64_t layer) {
  const TensorNames& names = NamesOf(s);
  TensorUnit unit{BlockName(s, layer), {}, {}};
  if (s.Layer(layer).delta) {
    AddDeltaNet(unit, s);
  } else {
    AddAttention(unit, s, s.Layer(layer));
  }
  AddNorm(unit, s.norm, names.attention_out_norm, s.hidden);
  AddNorm(unit, s.norm, names.mlp_norm, s.hidden);
  AddMlp(unit, s, s.Layer(layer));
  AddNorm(unit, s.norm, names.mlp_out_norm, s.hidden);
  if (s.layer_input > 0) AddInputLayer(unit, s);
  if (names.layer_scale != nullptr) {
    unit.tensors.push_back({unit.name + "." + names.layer_scale, {1}, TensorRole::kConstant});
  }
  if (names.transposed) {
    for (const std::vector<int>& matrix : unit.shared_matrices) {
      for (const int weight : matrix) unit.tensors[weight].transposed = true;
    }
  }
  return unit;
}

TensorUnit HeadTensors(const ModelShape& shape) {
  TensorUnit unit{"head", {}, {}};
  AddNormOf(unit, shape.norm, PrefixedName(shape.prefix, NamesOf(shape).final_norm), shape.hidden);
  if (!shape.tied_head) {
    unit.tensors.push_back({PrefixedName(shape.prefix, NamesOf(shape).head) + ".weight",
                            {shape.vocab, shape.hidden},
                            TensorRole::kHead});
  }
  return unit;
}

std::vector<TensorUnit> TensorsOf(const ModelShape& shape) {
  std::vector<TensorUnit> units{EmbeddingTensors(shape)};
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    units.push_back(BlockTensors(shape, layer));
  }
  units.push_back(HeadTensors(shape));
  return units;
}

}  // namespace sft::plan
