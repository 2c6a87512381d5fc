#include <algorithm>

#include "common/plan/families/family.h"

namespace sft::plan {
namespace {

constexpr int64_t kDefaultWindow = 4096;

void ReadMistral(const ConfigReader& config, ModelConfig& model) {
  const int64_t window = ReadWindow(config, kDefaultWindow);
  for (LayerOptions& layer : model.layer_options) layer.window = window;
}

// As Mistral, with windows by layer.
void ReadMinistral(const ConfigReader& config, ModelConfig& model) {
  ReadMistral(config, model);
  if (!config.Has("layer_types")) return;
  const int64_t window = ReadWindow(config, kDefaultWindow);
  for (LayerOptions& layer : model.layer_options) layer.window = 0;
  ReadLayerTypes(config, window, model);
}

// Windows only where use_sliding_window says so: in the layers of layer_types, or from
// max_window_layers on.
void ReadQwen(const ConfigReader& config, ModelConfig& model) {
  const int64_t window = ReadWindow(config, kDefaultWindow);
  if (window == 0 || !config.Flag("use_sliding_window")) return;
  if (config.Has("layer_types")) {
    ReadLayerTypes(config, window, model);
    return;
  }
  const int64_t first = std::max<int64_t>(0, config.Get<int64_t>("max_window_layers", 28));
  for (int64_t i = first; i < model.layers; ++i) model.layer_options[i].window = window;
}

}  // namespace

const Family kLlama = {.name = "llama", .has_attention_bias = true, .has_mlp_bias = true};

const Family kMistral = {.name = "mistral", .read = ReadMistral};

const Family kMinistral = {.name = "ministral", .read = ReadMinistral};

const Family kQwen2 = {.name = "qwen2", .qkv_bias = true, .read = ReadQwen};

const Family kQwen3 = {.name = "qwen3",
                       .defaults = {.head_dim = 128},
                       .has_attention_bias = true,
                       .qk_norm = QkNorm::kHeads,
                       .read = ReadQwen};

}  // namespace sft::plan
