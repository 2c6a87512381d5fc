#include "common/plan/families/delta.h"
#include "common/plan/families/experts.h"

namespace sft::plan {
namespace {

// Every layer has experts, whose weights always add up to 1.
void ReadQwen35Moe(const ConfigReader& config, ModelConfig& model) {
  ReadHybrid(config, model);
  // transformers 5 writes num_local_experts.
  const char* count = config.Has("num_local_experts") ? "num_local_experts" : "num_experts";
  ReadExperts(config,
              {.count_key = count,
               .count = 256,
               .chosen = 8,
               .size_key = "moe_intermediate_size",
               .size = 512},
              model, [](int64_t /*layer*/) { return true; });
  ReadGatedExpert(config, model);
}

constexpr TensorNames Qwen35Names() {
  TensorNames names = WithDeltaNets(kLlamaNames);
  names.delta_qkv = "linear_attn.in_proj_qkv";
  names.delta_z = "linear_attn.in_proj_z";
  names.delta_b = "linear_attn.in_proj_b";
  names.delta_a = "linear_attn.in_proj_a";
  return names;
}

// Published files hold stacks of experts, those that transformers 5 saved single ones.
constexpr TensorNames Qwen35MoeNames() {
  TensorNames names = WithGatedExpert(WithExperts(Qwen35Names()));
  names.may_be_stacks = true;
  return names;
}

}  // namespace

const Family kQwen35 = {.name = "qwen3_5_text",
                        .defaults = {.hidden = 4096,
                                     .intermediate = 12288,
                                     .layers = 32,
                                     .heads = 16,
                                     .vocab = 248'320,
                                     .kv_heads = 4,
                                     .head_dim = 256,
                                     .max_positions = 32'768},
                        .has_attention_bias = true,
                        .qk_norm = QkNorm::kHeads,
                        .norm = NormKind::kRmsOnePlus,
                        .names = Qwen35Names(),
                        .reads_rope = true,
                        .read = ReadHybrid};

// No layer has the size of a dense one.
const Family kQwen35Moe = {.name = "qwen3_5_moe_text",
                           .defaults = {.hidden = 2048,
                                        .intermediate = 512,
                                        .layers = 40,
                                        .heads = 16,
                                        .vocab = 248'320,
                                        .kv_heads = 2,
                                        .head_dim = 256,
                                        .max_positions = 32'768},
                           .has_attention_bias = true,
                           .qk_norm = QkNorm::kHeads,
                           .norm = NormKind::kRmsOnePlus,
                           .names = Qwen35MoeNames(),
                           .reads_rope = true,
                           .read = ReadQwen35Moe};

}  // namespace sft::plan
