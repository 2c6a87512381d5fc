#include "common/plan/families/experts.h"

namespace sft::plan {
namespace {

void ReadQwen3Moe(const ConfigReader& config, ModelConfig& model) {
  ReadQwenExperts(config, {.count = 128, .chosen = 8, .size = 768, .normalised = false}, model);
  if (config.Flag("use_sliding_window")) {
    config.Fail("use_sliding_window", "is not supported for qwen3_moe: no published model has it");
  }
}

}  // namespace

const Family kQwen3Moe = {.name = "qwen3_moe",
                          .defaults = {.hidden = 2048,
                                       .intermediate = 6144,
                                       .layers = 24,
                                       .heads = 32,
                                       .vocab = 151936,
                                       .kv_heads = 4,
                                       .max_positions = 32768},
                          .has_attention_bias = true,
                          .qk_norm = QkNorm::kHeads,
                          .names = WithExperts(kLlamaNames),
                          .read = ReadQwen3Moe};

}  // namespace sft::plan
