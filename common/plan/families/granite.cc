#include <fmt/format.h>

#include <string>
#include <vector>

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

constexpr std::string_view kDense =
    "of Granite 4.0 the dense models are read, whose layers are all attention: granite-4.0-micro, "
    "-1b and -350m, not those with \"-h-\" in their names";

// Granite 4.0. Mamba layers and experts stand in for what these models lack; without layer_types
// all layers are Mamba's, and without num_local_experts there are 8 experts.
void ReadDenseGranite4(const ConfigReader& config, ModelConfig& model) {
  ReadGranite(config, model);
  const auto types = config.Get("layer_types", std::vector<std::string>(model.layers, "mamba"));
  if (static_cast<int64_t>(types.size()) != model.layers) {
    config.Fail("layer_types", fmt::format("names {} layers of {}", types.size(), model.layers));
  }
  for (size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] == "attention" || types[layer] == "full_attention") continue;
    config.Fail("layer_types",
                fmt::format("{} layer {} \"{}\", a state-space model, which is not supported; {}",
                            config.Has("layer_types") ? "makes" : "is missing, which makes", layer,
                            types[layer], kDense));
  }
  if (const int64_t experts = config.Get<int64_t>("num_local_experts", 8); experts != 0) {
    config.Fail("num_local_experts",
                fmt::format("{} is not supported: these experts stand beside a feed-forward layer "
                            "of all tokens; {}",
                            experts, kDense));
  }
  const auto positions = config.Get("position_embedding_type", std::string("nope"));
  if (positions == "nope") {
    model.ropes[0] = {.type = RopeType::kNone};
  } else if (positions != "rope") {
    config.Fail("position_embedding_type",
                fmt::format("\"{}\" is not supported; rope and nope are", positions));
  }
}

}  // namespace

const Family kGranite = {
    .name = "granite", .has_attention_bias = true, .has_mlp_bias = true, .read = ReadGranite};

const Family kGranite4 = {.name = "granitemoehybrid",
                          .keys = {.intermediate = "shared_intermediate_size"},
                          .has_attention_bias = true,
                          // Gate and up are one linear.
                          .names =
                              [] {
                                TensorNames names = kLlamaNames;
                                names.gate = "shared_mlp.input_linear";
                                names.up = nullptr;
                                names.down = "shared_mlp.output_linear";
                                return names;
                              }(),
                          .read = ReadDenseGranite4};

}  // namespace sft::plan
