#include "common/plan/families/delta.h"
#include "common/plan/families/experts.h"

namespace sft::plan {
namespace {

void ReadQwen3Next(const ConfigReader& config, ModelConfig& model) {
  ReadHybrid(config, model);
  ReadQwenExperts(config, {.count = 512, .chosen = 10, .size = 512, .normalised = true}, model);
  ReadGatedExpert(config, model);
}

constexpr TensorNames Qwen3NextNames() {
  TensorNames names = WithGatedExpert(WithExperts(WithDeltaNets(kLlamaNames)));
  names.delta_qkv = "linear_attn.in_proj_qkvz";
  names.delta_b = "linear_attn.in_proj_ba";
  return names;
}

}  // namespace

const Family kQwen3Next = {.name = "qwen3_next",
                           .defaults = {.hidden = 2048,
                                        .intermediate = 5632,
                                        .layers = 48,
                                        .heads = 16,
                                        .vocab = 151'936,
                                        .kv_heads = 2,
                                        .head_dim = 256,
                                        .max_positions = 32'768},
                           .has_attention_bias = true,
                           .qk_norm = QkNorm::kHeads,
                           .norm = NormKind::kRmsOnePlus,
                           .names = Qwen3NextNames(),
                           .reads_rope = true,
                           .read = ReadQwen3Next};

}  // namespace sft::plan
