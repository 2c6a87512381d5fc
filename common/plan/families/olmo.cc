#include "common/plan/families/family.h"

namespace sft::plan {
namespace {

constexpr double kOlmo3Theta = 500'000.0;

// Sliding layers rotate unscaled; of the old style of file, with one rope_theta, transformers gives
// it to the full layers alone.
void ReadOlmo3(const ConfigReader& config, ModelConfig& model) {
  ReadSlidingLayers(config, ReadWindow(config, 4096), /*interval=*/4, model);
  ReadRopesByLayerType(config, kOlmo3Theta, kOlmo3Theta, model);
}

constexpr ConfigDefaults kOlmoDefaults = {.hidden = 4096,
                                          .intermediate = 11'008,
                                          .layers = 32,
                                          .heads = 32,
                                          .vocab = 50'304,
                                          .max_positions = 2048,
                                          .pad_token = 1,
                                          .epsilon = 1e-5};

// Norms stand behind the sub-layers alone.
constexpr TensorNames kOlmoNames = [] {
  TensorNames names = kLlamaNames;
  names.attention_norm = names.mlp_norm = nullptr;
  names.attention_out_norm = "post_attention_layernorm";
  names.mlp_out_norm = "post_feedforward_layernorm";
  return names;
}();

}  // namespace

const Family kOlmo2 = {.name = "olmo2",
                       .defaults = kOlmoDefaults,
                       .has_attention_bias = true,
                       .qk_norm = QkNorm::kWhole,
                       .norm = NormKind::kRmsFp32,
                       .names = kOlmoNames};

const Family kOlmo3 = {.name = "olmo3",
                       .defaults =
                           [] {
                             ConfigDefaults defaults = kOlmoDefaults;
                             defaults.theta = kOlmo3Theta;
                             return defaults;
                           }(),
                       .has_attention_bias = true,
                       .qk_norm = QkNorm::kWhole,
                       .norm = NormKind::kRmsFp32,
                       .names = kOlmoNames,
                       .read = ReadOlmo3};

}  // namespace sft::plan
