#include <cmath>

#include "common/plan/families/family.h"

namespace sft::plan {
namespace {

constexpr double kGemma3Theta = 1'000'000.0;
constexpr double kSlidingTheta = 10'000.0;

void ReadGemma3(const ConfigReader& config, ModelConfig& model) {
  // transformers multiplies by this number in the type of the weights.
  model.embedding_scale = std::sqrt(static_cast<double>(model.hidden));
  model.rounds_embedding_scale = true;
  model.attention_scale = 1.0 / std::sqrt(config.Factor("query_pre_attn_scalar", 256.0));
  // The name of the first published files; layer_types came with _sliding_window_pattern.
  const int64_t interval = config.Size("sliding_window_pattern", 6);
  ReadSlidingLayers(config, ReadWindow(config, 4096), interval, model);
  ReadRopesByLayerType(config, kGemma3Theta, config.Factor("rope_local_base_freq", kSlidingTheta),
                       model);
  model.max_positions = config.Size("max_position_embeddings", 131'072);  // scaling included
  if (config.Has("final_logit_softcapping")) {
    config.Fail("final_logit_softcapping", "is not supported; no released Gemma 3 has it");
  }
  if (config.Flag("use_bidirectional_attention")) {
    config.Fail("use_bidirectional_attention",
                "true makes it an encoder (EmbeddingGemma), which is not supported");
  }
}

}  // namespace

const Family kGemma3 = {.name = "gemma3_text",
                        .keys = {.activation = "hidden_activation"},
                        .defaults = {.hidden = 2304,
                                     .intermediate = 9216,
                                     .layers = 26,
                                     .heads = 8,
                                     .vocab = 262'208,
                                     .kv_heads = 4,
                                     .head_dim = 256,
                                     .max_positions = 131'072,
                                     .pad_token = 0,
                                     .theta = kGemma3Theta,
                                     .tied_head = true},
                        .activation = "gelu_pytorch_tanh",
                        .has_attention_bias = true,
                        .qk_norm = QkNorm::kHeads,
                        .norm = NormKind::kRmsOnePlus,
                        .names =
                            [] {
                              TensorNames names = kLlamaNames;
                              names.attention_out_norm = "post_attention_layernorm";
                              names.mlp_norm = "pre_feedforward_layernorm";
                              names.mlp_out_norm = "post_feedforward_layernorm";
                              return names;
                            }(),
                        .read = ReadGemma3};

}  // namespace sft::plan
