#include <fmt/format.h>

#include <vector>

#include "common/plan/families/family.h"

namespace sft::plan {
namespace {

// Layers whose no_rope_layers is 0 see no positions; without the list, every
// no_rope_layer_interval-th.
void ReadSmolLm3(const ConfigReader& config, ModelConfig& model) {
  std::vector<LayerOptions>& layers = model.layer_options;
  const int64_t interval = config.Size("no_rope_layer_interval", 4);
  std::vector<int> rotates;
  for (int64_t i = 0; i < model.layers; ++i) rotates.push_back((i + 1) % interval != 0);
  if (config.Has("no_rope_layers")) rotates = config.Get("no_rope_layers", rotates);
  if (rotates.size() < layers.size()) {
    config.Fail("no_rope_layers",
                fmt::format("names {} layers of {}", rotates.size(), layers.size()));
    return;
  }
  model.ropes.push_back({.type = RopeType::kNone});
  for (size_t i = 0; i < layers.size(); ++i) layers[i].rope = rotates[i] != 0 ? 0 : 1;
  if (!config.Has("sliding_window")) return;
  const int64_t window = config.Size("sliding_window");
  if (config.Has("layer_types")) {  // counts whatever use_sliding_window says
    ReadLayerTypes(config, window, model);
    return;
  }
  if (!config.Flag("use_sliding_window")) return;
  for (LayerOptions& layer : layers) layer.window = layer.rope == 0 ? 0 : window;
}

}  // namespace

const Family kSmolLm3 = {
    .name = "smollm3",
    .defaults = {.kv_heads = 4, .pad_token = 128004, .theta = 2'000'000.0, .tied_head = true},
    .has_attention_bias = true,
    .has_mlp_bias = true,
    .read = ReadSmolLm3};

}  // namespace sft::plan
