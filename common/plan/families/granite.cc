#include "common/plan/families/family.h"

namespace sft::plan {
namespace {

// Four scalars, each 1 where its key is missing.
void ReadGranite(const ConfigReader& config, ModelConfig& model) {
  model.embedding_scale = config.Factor("embedding_multiplier", 1.0);
  model.attention_scale = config.Factor("attention_multiplier", 1.0);
  model.residual_scale = config.Factor("residual_multiplier", 1.0);
  model.logit_scale = 1.0 / config.Factor("logits_scaling", 1.0);
}

}  // namespace

const Family kGranite = {
    .name = "granite", .has_attention_bias = true, .has_mlp_bias = true, .read = ReadGranite};

}  // namespace sft::plan
