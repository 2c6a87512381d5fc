#pragma once

#include <algorithm>
#include <vector>

#include "common/plan/families/family.h"

// What families with mixtures of experts share.

namespace sft::plan {

// The names that transformers has for experts at run time, and most files for each of them.
constexpr TensorNames WithExperts(TensorNames names) {
  names.router = "mlp.gate";
  names.experts_gate_up = "mlp.experts.gate_up_proj";
  names.experts_down = "mlp.experts.down_proj";
  names.experts = "mlp.experts";
  names.expert_gate = "gate_proj";
  names.expert_up = "up_proj";
  names.expert_down = "down_proj";
  return names;
}

// A family's key for the number of experts, and what config.json means where it leaves keys out.
struct ExpertDefaults {
  const char* count_key = nullptr;
  int64_t count = 0;
  const char* chosen_key = "num_experts_per_tok";
  int64_t chosen = 0;
  const char* size_key = nullptr;  // of an expert's intermediate size; null: the model's
  int64_t size = 0;
};

// The most experts of all layers together: each has names in the files.
inline constexpr int64_t kMostExperts = int64_t{1} << 16;

// Fails where a token would go to more experts than there are, or the sizes make no model.
void CheckExperts(const ConfigReader& config, const ExpertDefaults& defaults,
                  const LayerShape& sparse, const ModelConfig& model);

// Fails where the experts do not divide into the router's groups.
void CheckRouterGroups(const ConfigReader& config, const ModelConfig& model);

// Gives the layers that `has_experts(layer)` names a mixture of experts.
template <typename HasExperts>
void ReadExperts(const ConfigReader& config, const ExpertDefaults& defaults, ModelConfig& model,
                 const HasExperts& has_experts) {
  if (model.layer_shapes.empty()) model.layer_shapes.assign(model.layers, model.Layer(0));
  LayerShape sparse = model.Layer(0);
  sparse.experts = config.Size(defaults.count_key, defaults.count);
  sparse.chosen = config.Size(defaults.chosen_key, defaults.chosen);
  if (defaults.size_key != nullptr) {
    sparse.intermediate = config.Size(defaults.size_key, defaults.size);
  }
  CheckExperts(config, defaults, sparse, model);
  for (int64_t layer = 0; layer < static_cast<int64_t>(model.layer_shapes.size()); ++layer) {
    if (!has_experts(layer)) continue;
    LayerShape& shape = model.layer_shapes[layer];
    shape.experts = sparse.experts;
    shape.chosen = sparse.chosen;
    shape.intermediate = sparse.intermediate;
  }
}

// What config.json means where it leaves a key of Qwen's mixtures out.
struct QwenExpertDefaults {
  int64_t count = 0, chosen = 0, size = 0;
  bool normalised = false;  // weights of the chosen add up to 1
};

// As Qwen's models have them: a layer has experts unless mlp_only_layers names it or
// decoder_sparse_step passes over it.
void ReadQwenExperts(const ConfigReader& config, const QwenExpertDefaults& defaults,
                     ModelConfig& model);

}  // namespace sft::plan
