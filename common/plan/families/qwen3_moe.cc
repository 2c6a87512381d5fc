#include "common/plan/families/experts.h"

namespace sft::plan {
namespace {

// A layer has experts unless mlp_only_layers names it or decoder_sparse_step passes over it.
void ReadQwen3Moe(const ConfigReader& config, ModelConfig& model) {
  const std::vector<int64_t> dense = config.Get("mlp_only_layers", std::vector<int64_t>());
  const int64_t step = config.Size("decoder_sparse_step", 1);
  // transformers 5 writes num_local_experts.
  const char* count = config.Has("num_local_experts") ? "num_local_experts" : "num_experts";
  ReadExperts(config,
              {.count_key = count,
               .count = 128,
               .chosen = 8,
               .size_key = "moe_intermediate_size",
               .size = 768},
              model, [&](int64_t layer) {
                return (layer + 1) % step == 0 &&
                       std::find(dense.begin(), dense.end(), layer) == dense.end();
              });
  model.router.weights =
      config.Flag("norm_topk_prob") ? RouterWeights::kSoftmaxOfTopK : RouterWeights::kSoftmaxOfAll;
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
