#include <fmt/format.h>

#include "common/plan/families/experts.h"
#include "common/plan/read_rope.h"

namespace sft::plan {
namespace {

// The first layers are dense. Every token goes to the shared experts too, which are one wide one.
void ReadGlm4Moe(const ConfigReader& config, ModelConfig& model) {
  ReadPartialRope(config, 10'000.0, /*rotated=*/0.5, model);
  model.qkv_bias = config.Flag("attention_bias");
  model.output_bias = false;
  model.qk_norm = config.Flag("use_qk_norm") ? QkNorm::kHeads : QkNorm::kNone;
  const int64_t dense = config.Get<int64_t>("first_k_dense_replace", 1);
  const char* count = config.Has("n_routed_experts") ? "n_routed_experts" : "num_local_experts";
  ReadExperts(config,
              {.count_key = count,
               .count = 128,
               .chosen = 8,
               .size_key = "moe_intermediate_size",
               .size = 1408},
              model, [dense](int64_t layer) { return layer >= dense; });
  const int64_t shared = config.Get<int64_t>("n_shared_experts", 1);
  constexpr int64_t kMostShared = 1024;
  if (shared < 0 || shared > kMostShared) {
    config.Fail("n_shared_experts", fmt::format("must be from 0 to {}", kMostShared));
    return;
  }
  for (LayerShape& layer : model.layer_shapes) {
    if (layer.experts > 0) layer.shared = shared * layer.intermediate;
  }
  RouterOptions& router = model.router;
  router.weights = config.Flag("norm_topk_prob", true) ? RouterWeights::kSigmoidOverTheirSum
                                                       : RouterWeights::kSigmoid;
  router.scale = config.Factor("routed_scaling_factor", 1.0);
  router.groups = config.Size("n_group", 1);
  router.best_groups = config.Size("topk_group", 1);
  CheckRouterGroups(config, model);
}

constexpr TensorNames Glm4MoeNames() {
  TensorNames names = WithExperts(kLlamaNames);
  names.router_correction = "mlp.gate.e_score_correction_bias";
  names.shared_gate = "mlp.shared_experts.gate_proj";
  names.shared_up = "mlp.shared_experts.up_proj";
  names.shared_down = "mlp.shared_experts.down_proj";
  names.has_mtp_layer = true;
  return names;
}

}  // namespace

const Family kGlm4Moe = {.name = "glm4_moe",
                         .defaults = {.hidden = 4096,
                                      .intermediate = 10944,
                                      .layers = 46,
                                      .heads = 96,
                                      .vocab = 151552,
                                      .kv_heads = 8,
                                      .max_positions = 131072,
                                      .epsilon = 1e-5},
                         .names = Glm4MoeNames(),
                         .reads_rope = true,
                         .read = ReadGlm4Moe};

}  // namespace sft::plan
