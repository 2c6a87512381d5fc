#include <fmt/format.h>

#include "common/plan/families/experts.h"

namespace sft::plan {
namespace {

constexpr double kClamp = 7.0;  // transformers computes with this, whatever swiglu_limit says

constexpr double kTheta = 150'000.0;

RopeOptions DefaultRope(double theta) {
  return {.type = RopeType::kYarn,
          .theta = theta,
          .factor = 32.0,
          .original_max_positions = 4096,
          .truncate = false};
}

void ReadGptOss(const ConfigReader& config, ModelConfig& model) {
  const bool bias = config.Flag("attention_bias", true);
  model.qkv_bias = model.output_bias = bias;
  if (!config.Has("rope_scaling") && !config.Has("rope_parameters")) {
    model.ropes = {DefaultRope(config.Get("rope_theta", kTheta))};
  }
  ReadSlidingLayers(config, ReadWindow(config, 128), /*interval=*/2, model);
  const char* chosen =
      config.Has("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token";
  ReadExperts(config,
              {.count_key = "num_local_experts", .count = 128, .chosen_key = chosen, .chosen = 4},
              model, [](int64_t) { return true; });
  model.activation = ActivationKind::kClampedSwiGlu;
  if (const double limit = config.Get("swiglu_limit", kClamp); limit != kClamp) {
    config.Fail("swiglu_limit", fmt::format("{} is not supported, {} is", limit, kClamp));
  }
}

constexpr TensorNames GptOssNames() {
  TensorNames names = WithExperts(kLlamaNames);
  names.q_norm = names.k_norm = nullptr;
  names.sinks = "self_attn.sinks";
  names.router = "mlp.router";
  names.router_bias = true;
  names.experts = nullptr;
  names.transposed_stacks = true;
  names.experts_bias = true;
  return names;
}

}  // namespace

const Family kGptOss = {.name = "gpt_oss",
                        .defaults = {.hidden = 2880,
                                     .intermediate = 2880,
                                     .layers = 36,
                                     .heads = 64,
                                     .vocab = 201088,
                                     .kv_heads = 8,
                                     .head_dim = 64,
                                     .max_positions = 131072,
                                     .theta = kTheta,
                                     .epsilon = 1e-5},
                        .names = GptOssNames(),
                        .read = ReadGptOss};

}  // namespace sft::plan
