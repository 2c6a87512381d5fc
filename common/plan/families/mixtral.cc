#include "common/plan/families/experts.h"

namespace sft::plan {
namespace {

void ReadMixtral(const ConfigReader& config, ModelConfig& model) {
  ReadExperts(config, {.count_key = "num_local_experts", .count = 8, .chosen = 2}, model,
              [](int64_t) { return true; });
  const int64_t window = ReadWindow(config, 0);
  for (LayerOptions& layer : model.layer_options) layer.window = window;
  if (config.Get("router_jitter_noise", 0.0) != 0.0) {
    config.Fail("router_jitter_noise", "is not supported: set it to 0");
  }
}

constexpr TensorNames MixtralNames() {
  TensorNames names = WithExperts(kLlamaNames);
  names.router = "block_sparse_moe.gate";
  names.experts = "block_sparse_moe.experts";
  names.expert_gate = "w1";
  names.expert_up = "w3";
  names.expert_down = "w2";
  return names;
}

}  // namespace

const Family kMixtral = {.name = "mixtral",
                         .defaults = {.hidden = 4096,
                                      .intermediate = 14336,
                                      .layers = 32,
                                      .heads = 32,
                                      .vocab = 32000,
                                      .kv_heads = 8,
                                      .max_positions = 131072,
                                      .theta = 1'000'000.0,
                                      .epsilon = 1e-5},
                         .names = MixtralNames(),
                         .read = ReadMixtral};

}  // namespace sft::plan
