#include "common/plan/tensors.h"

#include <utility>

namespace sft::plan {
namespace {

// Llama's names, which most families took over.
constexpr TensorNames kLlamaNames = {
    .embedding = "model.embed_tokens",
    .final_norm = "model.norm",
    .head = "lm_head",
    .block = "model.layers",
    .input_norm = "input_layernorm",
    .post_norm = "post_attention_layernorm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
};

void AddNorm(TensorUnit& unit, const std::string& module, int64_t size) {
  unit.tensors.push_back({module + ".weight", {size}, TensorRole::kNorm});
}

struct LinearShape {
  std::string module;
  int64_t out = 0;
};

// Linear layers that read one input of size `in`: the weights first, so that they stand side by
// side in every buffer.
void AddLinears(TensorUnit& unit, const std::vector<LinearShape>& linears, int64_t in, bool bias) {
  std::vector<int> matrix;
  for (const LinearShape& linear : linears) {
    matrix.push_back(static_cast<int>(unit.tensors.size()));
    unit.tensors.push_back({linear.module + ".weight", {linear.out, in}, TensorRole::kLinear});
  }
  unit.shared_matrices.push_back(std::move(matrix));
  if (!bias) return;
  for (const LinearShape& linear : linears) {
    unit.tensors.push_back({linear.module + ".bias", {linear.out}, TensorRole::kBias});
  }
}

}  // namespace

const TensorNames& NamesOf(const ModelShape&) { return kLlamaNames; }

std::string BlockName(const ModelShape& shape, int64_t layer) {
  return std::string(NamesOf(shape).block) + "." + std::to_string(layer);
}

int64_t TensorInfo::elements() const {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

std::string TensorInfo::module() const { return name.substr(0, name.rfind('.')); }

TensorUnit EmbeddingTensors(const ModelShape& shape) {
  TensorUnit unit{"embedding", {}, {}};
  unit.tensors.push_back({std::string(NamesOf(shape).embedding) + ".weight",
                          {shape.vocab, shape.hidden},
                          TensorRole::kEmbedding});
  return unit;
}

TensorUnit BlockTensors(const ModelShape& s, int64_t layer) {
  const TensorNames& names = NamesOf(s);
  TensorUnit unit{BlockName(s, layer), {}, {}};
  const std::string prefix = unit.name + ".";
  const int64_t queries = s.heads * s.head_dim;
  const int64_t keys = s.kv_heads * s.head_dim;
  AddNorm(unit, prefix + names.input_norm, s.hidden);
  AddLinears(unit,
             {{prefix + names.q, queries}, {prefix + names.k, keys}, {prefix + names.v, keys}},
             s.hidden, s.qkv_bias);
  if (s.qk_norm) {
    AddNorm(unit, prefix + names.q_norm, s.head_dim);
    AddNorm(unit, prefix + names.k_norm, s.head_dim);
  }
  AddLinears(unit, {{prefix + names.o, s.hidden}}, queries, s.output_bias);
  AddNorm(unit, prefix + names.post_norm, s.hidden);
  AddLinears(unit, {{prefix + names.gate, s.intermediate}, {prefix + names.up, s.intermediate}},
             s.hidden, s.mlp_bias);
  AddLinears(unit, {{prefix + names.down, s.hidden}}, s.intermediate, s.mlp_bias);
  return unit;
}

TensorUnit HeadTensors(const ModelShape& shape) {
  TensorUnit unit{"head", {}, {}};
  AddNorm(unit, NamesOf(shape).final_norm, shape.hidden);
  if (!shape.tied_head) {
    unit.tensors.push_back({std::string(NamesOf(shape).head) + ".weight",
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
