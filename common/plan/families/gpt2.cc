#include "common/plan/families/family.h"

namespace sft::plan {
namespace {

double ReadDropout(const ConfigReader& config, const char* key) {
  const double p = config.Get(key, 0.1);
  if (!(p >= 0.0 && p < 1.0)) config.Fail(key, "must be at least 0 and below 1");
  return p;
}

void ReadGpt2(const ConfigReader& config, ModelConfig& model) {
  model.learned_positions = model.max_positions;
  model.ropes[0].type = RopeType::kNone;
  model.qkv_bias = model.output_bias = model.mlp_bias = true;
  model.embedding_dropout = ReadDropout(config, "embd_pdrop");
  model.residual_dropout = ReadDropout(config, "resid_pdrop");
  model.attention_dropout = ReadDropout(config, "attn_pdrop");
  if (!config.Flag("scale_attn_weights", true)) model.attention_scale = 1.0;
  for (const char* key :
       {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"}) {
    if (config.Flag(key)) config.Fail(key, "true is not supported");
  }
}

}  // namespace

const Family kGpt2 = {.name = "gpt2",
                      .keys = {.hidden = "n_embd",
                               .intermediate = "n_inner",
                               .layers = "n_layer",
                               .heads = "n_head",
                               .max_positions = "n_positions",
                               .epsilon = "layer_norm_epsilon",
                               .activation = "activation_function"},
                      .defaults = {.hidden = 768,
                                   .intermediate_per_hidden = 4,
                                   .layers = 12,
                                   .heads = 12,
                                   .vocab = 50'257,
                                   .max_positions = 1024,
                                   .epsilon = 1e-5,
                                   .tied_head = true},
                      .activation = "gelu_new",
                      .norm = NormKind::kLayerNorm,
                      .names = {.embedding = "transformer.wte",
                                .positions = "transformer.wpe",
                                .final_norm = "transformer.ln_f",
                                .head = "lm_head",
                                .block = "transformer.h",
                                .attention_norm = "ln_1",
                                .q = "attn.c_attn",
                                .o = "attn.c_proj",
                                .mlp_norm = "ln_2",
                                .up = "mlp.c_fc",
                                .down = "mlp.c_proj",
                                .transposed = true,
                                .optional_prefix = "transformer."},
                      .reads_rope = true,
                      .read = ReadGpt2};

}  // namespace sft::plan
