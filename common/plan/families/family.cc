#include "common/plan/families/family.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "common/plan/families/experts.h"
#include "common/plan/read_rope.h"

namespace sft::plan {

void ReadLayerTypes(const ConfigReader& config, int64_t window, ModelConfig& model) {
  std::vector<LayerOptions>& layers = model.layer_options;
  const auto types = config.Get<std::vector<std::string>>("layer_types", {});
  if (types.size() != layers.size()) {
    config.Fail("layer_types", fmt::format("names {} layers of {}", types.size(), layers.size()));
    return;
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == "sliding_attention") {
      layers[i].window = window;
    } else if (types[i] != "full_attention") {
      config.Fail("layer_types", fmt::format("has \"{}\", which is not supported", types[i]));
    }
  }
}

int64_t ReadWindow(const ConfigReader& config, int64_t fallback) {
  return config.HasKey("sliding_window") ? config.Get<int64_t>("sliding_window", 0) : fallback;
}

void ReadSlidingLayers(const ConfigReader& config, int64_t window, int64_t interval,
                       ModelConfig& model) {
  if (config.Has("layer_types")) {
    ReadLayerTypes(config, window, model);
    return;
  }
  for (int64_t i = 0; i < model.layers; ++i) {
    if ((i + 1) % interval != 0) model.layer_options[i].window = window;
  }
}

void ReadRopesByLayerType(const ConfigReader& config, double theta, double sliding_theta,
                          ModelConfig& model) {
  RopeOptions sliding{.theta = sliding_theta};
  theta = config.Get("rope_theta", theta);
  model.ropes[0].truncate = true;  // transformers reads the key where all layers have one rope
  if (const auto by_type = config.Object("rope_parameters")) {
    if (config.Has("rope_scaling")) {
      config.Fail("rope_scaling",
                  "stands beside rope_parameters, which has a rope for each type of layer: write "
                  "its keys into rope_parameters.full_attention and leave it out");
    }
    const auto read = [&](const char* type, double base) {
      RopeOptions rope{.theta = base};
      if (const auto parameters = by_type->Object(type)) {
        ReadRopeParameters(*parameters, config, rope, /*of_layers=*/true);
        rope.truncate = true;
      }
      return rope;
    };
    model.ropes[0] = read("full_attention", theta);
    sliding = read("sliding_attention", sliding_theta);
  }
  model.ropes.push_back(sliding);
  for (LayerOptions& layer : model.layer_options) layer.rope = layer.window > 0 ? 1 : 0;
}

void CheckExperts(const ConfigReader& config, const ExpertDefaults& defaults,
                  const LayerShape& sparse, const ModelConfig& model) {
  if (sparse.experts < 2) {
    config.Fail(defaults.count_key, "must be at least 2: one expert is a plain feed-forward layer");
  }
  if (sparse.chosen > sparse.experts) {
    config.Fail(defaults.chosen_key,
                fmt::format("{} is more than the {} experts", sparse.chosen, sparse.experts));
  }
  if (sparse.experts > kMostExperts / model.layers) {
    config.Fail(defaults.count_key,
                fmt::format("{} in each of {} layers are more than any model has, {} in all",
                            sparse.experts, model.layers, kMostExperts));
  }
  const double weights = 3.0 * static_cast<double>(sparse.experts) *
                         static_cast<double>(sparse.intermediate) *
                         static_cast<double>(model.hidden) * static_cast<double>(model.layers);
  if (weights >= kMostWeights) {
    config.Fail(defaults.count_key,
                fmt::format("{} with the other sizes makes {:.0e} weights, more than "
                            "any model has",
                            sparse.experts, weights));
  }
}

void ReadQwenExperts(const ConfigReader& config, const QwenExpertDefaults& defaults,
                     ModelConfig& model) {
  const std::vector<int64_t> dense = config.Get("mlp_only_layers", std::vector<int64_t>());
  const int64_t step = config.Size("decoder_sparse_step", 1);
  // transformers 5 writes num_local_experts.
  const char* count = config.Has("num_local_experts") ? "num_local_experts" : "num_experts";
  ReadExperts(config,
              {.count_key = count,
               .count = defaults.count,
               .chosen = defaults.chosen,
               .size_key = "moe_intermediate_size",
               .size = defaults.size},
              model, [&](int64_t layer) {
                return (layer + 1) % step == 0 &&
                       std::find(dense.begin(), dense.end(), layer) == dense.end();
              });
  model.router.weights = config.Flag("norm_topk_prob", defaults.normalised)
                             ? RouterWeights::kSoftmaxOfTopK
                             : RouterWeights::kSoftmaxOfAll;
}

void CheckRouterGroups(const ConfigReader& config, const ModelConfig& model) {
  const RouterOptions& router = model.router;
  if (router.best_groups > router.groups) {
    config.Fail("topk_group",
                fmt::format("{} is more than the {} groups", router.best_groups, router.groups));
  }
  for (const LayerShape& layer : model.layer_shapes) {
    if (layer.experts == 0) continue;
    const int64_t of_group = layer.experts / router.groups;
    if (layer.experts % router.groups != 0 || (router.groups > 1 && of_group < 2)) {
      config.Fail("n_group", fmt::format("{} does not divide {} experts into groups of two or more",
                                         router.groups, layer.experts));
    } else if (layer.chosen > router.best_groups * of_group) {
      config.Fail("topk_group", fmt::format("{} groups of {} have fewer than {} experts",
                                            router.best_groups, of_group, layer.chosen));
    }
    return;
  }
}

}  // namespace sft::plan
