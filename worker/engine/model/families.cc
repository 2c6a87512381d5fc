#include "worker/engine/model/families.h"

#include <utility>

namespace sft::engine {

namespace {

// Llama's names, which Mistral, Qwen2 and Qwen3 took over.
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

void AddNorm(UnitInfo& unit, const std::string& module, int64_t size) {
  unit.params.push_back({module + ".weight", {size}, ParamRole::kNorm});
}

struct LinearShape {
  std::string module;
  int64_t out = 0;
};

// Linear layers that read one input of size `in`: the weights first, side by side in every buffer.
void AddLinears(UnitInfo& unit, const std::vector<LinearShape>& linears, int64_t in, bool bias) {
  std::vector<int> matrix;
  for (const LinearShape& linear : linears) {
    matrix.push_back(static_cast<int>(unit.params.size()));
    unit.params.push_back({linear.module + ".weight", {linear.out, in}, ParamRole::kLinear});
  }
  unit.shared_matrices.push_back(std::move(matrix));
  if (!bias) return;
  for (const LinearShape& linear : linears) {
    unit.params.push_back({linear.module + ".bias", {linear.out}, ParamRole::kBias});
  }
}

UnitInfo MakeBlock(const ModelConfig& c, const TensorNames& names, int64_t layer) {
  UnitInfo unit{BlockName(c, layer), {}, {}};
  const std::string prefix = unit.name + ".";
  const int64_t queries = c.heads * c.head_dim;
  const int64_t keys = c.kv_heads * c.head_dim;
  AddNorm(unit, prefix + names.input_norm, c.hidden);
  AddLinears(unit,
             {{prefix + names.q, queries}, {prefix + names.k, keys}, {prefix + names.v, keys}},
             c.hidden, c.qkv_bias);
  if (c.qk_norm) {
    AddNorm(unit, prefix + names.q_norm, c.head_dim);
    AddNorm(unit, prefix + names.k_norm, c.head_dim);
  }
  AddLinears(unit, {{prefix + names.o, c.hidden}}, queries, c.output_bias);
  AddNorm(unit, prefix + names.post_norm, c.hidden);
  AddLinears(unit, {{prefix + names.gate, c.intermediate}, {prefix + names.up, c.intermediate}},
             c.hidden, c.mlp_bias);
  AddLinears(unit, {{prefix + names.down, c.hidden}}, c.intermediate, c.mlp_bias);
  return unit;
}

}  // namespace

const TensorNames& NamesOf(const ModelConfig&) { return kLlamaNames; }

std::string BlockName(const ModelConfig& config, int64_t layer) {
  return std::string(NamesOf(config).block) + "." + std::to_string(layer);
}

ModelLayout MakeLayout(const ModelConfig& config) {
  const TensorNames& names = NamesOf(config);
  ModelLayout layout;
  UnitInfo embedding{"embedding", {}, {}};
  embedding.params.push_back({std::string(names.embedding) + ".weight",
                              {config.vocab, config.hidden},
                              ParamRole::kEmbedding});
  layout.units.push_back(std::move(embedding));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    layout.units.push_back(MakeBlock(config, names, layer));
  }
  UnitInfo head{"head", {}, {}};
  AddNorm(head, names.final_norm, config.hidden);
  if (!config.tied_head) {
    head.params.push_back(
        {std::string(names.head) + ".weight", {config.vocab, config.hidden}, ParamRole::kHead});
  }
  layout.units.push_back(std::move(head));
  return layout;
}

}  // namespace sft::engine
