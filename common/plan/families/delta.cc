#include "common/plan/families/delta.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "common/plan/read_rope.h"

namespace sft::plan {
namespace {

// A model of sizes that no memory holds would overflow what counts them.
void CheckDeltaSize(const ConfigReader& config, const ModelConfig& model) {
  const DeltaShape& delta = model.delta;
  const double columns =
      2.0 * static_cast<double>(delta.key_heads) * static_cast<double>(delta.key_size) +
      3.0 * static_cast<double>(delta.value_heads) * (static_cast<double>(delta.value_size) + 1.0);
  const double weights =
      columns * static_cast<double>(model.hidden) * static_cast<double>(model.layers);
  if (weights < kMostWeights) return;
  config.Fail("linear_num_value_heads",
              fmt::format("{} with the other sizes makes {:.0e} weights, more than any model has",
                          delta.value_heads, weights));
}

void ReadDelta(const ConfigReader& config, ModelConfig& model) {
  DeltaShape& delta = model.delta;
  delta = {.key_heads = config.Size("linear_num_key_heads", 16),
           .value_heads = config.Size("linear_num_value_heads", 32),
           .key_size = config.Size("linear_key_head_dim", 128),
           .value_size = config.Size("linear_value_head_dim", 128)};
  CheckDeltaSize(config, model);
  if (delta.value_heads % delta.key_heads != 0) {
    config.Fail("linear_num_value_heads", fmt::format("{} is no multiple of {} key heads",
                                                      delta.value_heads, delta.key_heads));
  }
  if (config.Size("linear_conv_kernel_dim", kDeltaConvolution) != kDeltaConvolution) {
    config.Fail("linear_conv_kernel_dim",
                fmt::format("other than {} is not supported", kDeltaConvolution));
  }
}

void ReadMixers(const ConfigReader& config, ModelConfig& model) {
  const int64_t interval = config.Size("full_attention_interval", 4);
  const auto types = config.Get<std::vector<std::string>>("layer_types", {});
  const bool named = config.Has("layer_types");
  if (named && static_cast<int64_t>(types.size()) != model.layers) {
    config.Fail("layer_types", fmt::format("names {} layers of {}", types.size(), model.layers));
    return;
  }
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    LayerShape shape{model.kv_heads, model.head_dim, model.intermediate};
    shape.delta = named ? types[layer] == "linear_attention" : (layer + 1) % interval != 0;
    if (named && !shape.delta && types[layer] != "full_attention") {
      config.Fail("layer_types", fmt::format("has \"{}\", which is not supported", types[layer]));
    }
    model.layer_shapes.push_back(shape);
  }
}

}  // namespace

void ReadHybrid(const ConfigReader& config, ModelConfig& model) {
  // mrope_section splits a token's three positions, which are equal in text: it changes nothing.
  ReadPartialRope(config, 10'000.0, /*rotated=*/0.25, model);
  model.output_gate = true;
  if (!config.Flag("attn_output_gate", true)) {
    config.Fail("attn_output_gate",
                fmt::format("false is not supported; no released {} model has it", model.family));
  }
  if (model.activation != ActivationKind::kSilu) {
    config.Fail("hidden_act", "other than silu is not supported: linear attention has it too");
  }
  ReadDelta(config, model);
  ReadMixers(config, model);
}

void ReadGatedExpert(const ConfigReader& config, ModelConfig& model) {
  const int64_t size = config.Size("shared_expert_intermediate_size", 512);
  const double weights = 3.0 * static_cast<double>(size) * static_cast<double>(model.hidden) *
                         static_cast<double>(model.layers);
  if (weights >= kMostWeights) {
    config.Fail("shared_expert_intermediate_size",
                fmt::format("{} with the other sizes makes {:.0e} weights, more than any model has",
                            size, weights));
  }
  for (LayerShape& layer : model.layer_shapes) {
    if (layer.experts > 0) layer.shared = size;
  }
}

}  // namespace sft::plan
