#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string>

#include "common/plan/families/experts.h"
#include "common/plan/read_rope.h"

namespace sft::plan {
namespace {

constexpr double kFullTheta = 1'000'000.0;
constexpr double kGemma4SlidingTheta = 10'000.0;

void ReadGemma4Ropes(const ConfigReader& config, ModelConfig& model) {
  RopeOptions full{.type = RopeType::kProportional, .theta = kFullTheta, .rotated = 0.25};
  RopeOptions sliding{.theta = kGemma4SlidingTheta};
  if (const auto by_type = config.Object("rope_parameters")) {
    full = {.theta = kFullTheta};
    if (const auto given = by_type->Object("full_attention")) {
      ReadRopeParameters(*given, config, full);
    }
    if (const auto given = by_type->Object("sliding_attention")) {
      ReadRopeParameters(*given, config, sliding);
    }
  }
  model.ropes = {full, sliding};
  for (LayerOptions& layer : model.layer_options) layer.rope = layer.window > 0 ? 1 : 0;
}

// What per_layer_config says of layers, by index: how transformers 5.17 writes the sizes of full
// layers, in place of global_head_dim and num_global_key_value_heads.
void ReadPerLayerConfig(const ConfigReader& by_layer, ModelConfig& model) {
  for (const std::string& index : by_layer.Keys()) {
    int64_t layer = 0;
    const char* end = index.data() + index.size();
    const auto [rest, error] = std::from_chars(index.data(), end, layer);
    if (error != std::errc() || rest != end || layer < 0 || layer >= model.layers) {
      by_layer.Fail(index.c_str(), fmt::format("is no layer of {}", model.layers));
      return;
    }
    const auto sizes = by_layer.Object(index.c_str());
    if (!sizes) continue;
    LayerShape& shape = model.layer_shapes[layer];
    for (const std::string& key : sizes->Keys()) {
      if (key == "head_dim") {
        shape.head_dim = sizes->Size("head_dim");
      } else if (key == "num_key_value_heads") {
        shape.kv_heads = sizes->Size("num_key_value_heads");
      } else {
        sizes->Fail(key.c_str(),
                    "is not read of single layers; head_dim and num_key_value_heads are");
      }
    }
  }
}

// Full layers have heads of their own size, and their own number of key heads where they have no
// values.
void ReadGemma4Shapes(const ConfigReader& config, ModelConfig& model) {
  const bool keys_are_values = config.Flag("attention_k_eq_v");
  const auto by_layer = config.Object("per_layer_config");
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    LayerShape shape{model.kv_heads, model.head_dim, model.intermediate};
    if (model.layer_options[layer].window == 0) {
      shape.keys_are_values = keys_are_values;
      if (!by_layer) {
        shape.head_dim = config.Size("global_head_dim", 512);
        if (keys_are_values) {
          shape.kv_heads = config.Size("num_global_key_value_heads", model.kv_heads);
        }
      }
    }
    model.layer_shapes.push_back(shape);
  }
  if (by_layer) ReadPerLayerConfig(*by_layer, model);
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const LayerShape& shape = model.layer_shapes[layer];
    const char* const heads_key = by_layer ? "per_layer_config" : "num_global_key_value_heads";
    if (model.heads % shape.kv_heads != 0) {
      config.Fail(heads_key, fmt::format("gives layer {} {} key heads, which do not divide {} "
                                         "attention heads",
                                         layer, shape.kv_heads, model.heads));
    }
    if (shape.head_dim % 2 != 0) {
      config.Fail(by_layer ? "per_layer_config" : "global_head_dim",
                  "heads must have an even size");
    }
  }
}

// A whole number of at least 0; null and `fallback` as given.
int64_t ReadCount(const ConfigReader& config, const char* key, int64_t fallback) {
  const int64_t count = config.HasKey(key) ? config.Get<int64_t>(key, 0) : fallback;
  if (count < 0) config.Fail(key, "must be at least 0");
  return count;
}

// The last layers have no keys and values: each attends to those of the last layer of its type that
// has. Their feed-forward layers may be of twice the width.
void ReadSharing(const ConfigReader& config, ModelConfig& model) {
  constexpr const char* kKey = "num_kv_shared_layers";
  const int64_t first = model.layers - ReadCount(config, kKey, 0);
  const bool wide = config.Flag("use_double_wide_mlp");
  if (first <= 0) {
    config.Fail(kKey, fmt::format("must be below the {} layers", model.layers));
    return;
  }
  for (int64_t layer = first; layer < model.layers; ++layer) {
    LayerShape& shape = model.layer_shapes[layer];
    const bool slides = model.layer_options[layer].window > 0;
    int64_t owner = first - 1;
    while (owner >= 0 && (model.layer_options[owner].window > 0) != slides) --owner;
    if (owner < 0) {
      config.Fail(kKey, fmt::format("leaves layer {} no layer of its type to share with", layer));
      return;
    }
    const LayerShape& owned = model.layer_shapes[owner];
    if (shape.head_dim != owned.head_dim || shape.kv_heads != owned.kv_heads) {
      config.Fail(kKey, fmt::format("makes layer {} use the keys of layer {}, but their heads "
                                    "differ in size or number",
                                    layer, owner));
    }
    shape.keys_of = owner;
    shape.keys_are_values = false;
    if (wide) shape.intermediate *= 2;
  }
}

void ReadLayerInputs(const ConfigReader& config, ModelConfig& model) {
  model.layer_input = ReadCount(config, "hidden_size_per_layer_input", 256);
  if (model.layer_input == 0) return;
  model.layer_input_vocab = config.Size("vocab_size_per_layer_input", 262'144);
  if (model.layer_input_vocab < model.vocab) {
    config.Fail("vocab_size_per_layer_input", fmt::format("{} is less than the vocabulary of {}",
                                                          model.layer_input_vocab, model.vocab));
  }
}

void RefuseWhatGemma4Lacks(const ConfigReader& config) {
  if (config.Get("use_bidirectional_attention", std::string()) == "all") {
    config.Fail("use_bidirectional_attention",
                "\"all\" makes it an encoder, which is not supported");
  }
}

// Every layer has experts beside its feed-forward layer, which becomes the expert of all tokens.
void ReadGemma4Experts(const ConfigReader& config, ModelConfig& model) {
  if (model.layer_input > 0) {
    config.Fail("hidden_size_per_layer_input",
                "must be 0 where enable_moe_block is true: no published model has both");
    return;
  }
  for (LayerShape& layer : model.layer_shapes) layer.shared = layer.intermediate;
  // transformers has no defaults for these.
  const char* count = config.Has("num_local_experts") ? "num_local_experts" : "num_experts";
  ReadExperts(
      config,
      {.count_key = count, .chosen_key = "top_k_experts", .size_key = "moe_intermediate_size"},
      model, [](int64_t /*layer*/) { return true; });
  model.router.score_scale = 1.0 / std::sqrt(static_cast<double>(model.hidden));
}

void ReadGemma4(const ConfigReader& config, ModelConfig& model) {
  RefuseWhatGemma4Lacks(config);
  model.embedding_scale = std::sqrt(static_cast<double>(model.hidden));
  model.rounds_embedding_scale = true;
  model.attention_scale = 1.0;  // the norms of queries and keys have learned it
  model.value_norm = true;
  if (config.Has("final_logit_softcapping")) {
    model.logit_cap = config.Factor("final_logit_softcapping", 30.0);
  }
  ReadSlidingLayers(config, ReadWindow(config, 512), /*interval=*/6, model);
  model.layer_options.back().window = 0;  // transformers makes the last layer full, whatever it is
  ReadGemma4Ropes(config, model);
  ReadGemma4Shapes(config, model);
  if (!config.ok()) return;
  ReadSharing(config, model);
  ReadLayerInputs(config, model);
  if (config.Flag("enable_moe_block")) ReadGemma4Experts(config, model);
}

constexpr TensorNames Gemma4Names() {
  TensorNames names = kLlamaNames;
  names.attention_out_norm = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm";
  names.mlp_out_norm = "post_feedforward_layernorm";
  names.layer_inputs = "model.embed_tokens_per_layer";
  names.layer_inputs_projection = "model.per_layer_model_projection";
  names.layer_inputs_norm = "model.per_layer_projection_norm";
  names.input_gate = "per_layer_input_gate";
  names.input_projection = "per_layer_projection";
  names.input_out_norm = "post_per_layer_input_norm";
  names.layer_scale = "layer_scalar";
  names.router = "router.proj";
  names.router_norm = "router.scale";
  names.router_expert_scale = "router.per_expert_scale";
  names.experts_gate_up = "experts.gate_up_proj";
  names.experts_down = "experts.down_proj";
  names.shared_gate = names.gate;
  names.shared_up = names.up;
  names.shared_down = names.down;
  names.shared_out_norm = "post_feedforward_layernorm_1";
  names.experts_norm = "pre_feedforward_layernorm_2";
  names.experts_out_norm = "post_feedforward_layernorm_2";
  return names;
}

}  // namespace

const Family kGemma4 = {.name = "gemma4_text",
                        .keys = {.activation = "hidden_activation"},
                        .defaults = {.hidden = 2304,
                                     .intermediate = 9216,
                                     .layers = 30,
                                     .heads = 8,
                                     .vocab = 262'144,
                                     .kv_heads = 4,
                                     .head_dim = 256,
                                     .max_positions = 131'072,
                                     .pad_token = 0,
                                     .tied_head = true},
                        .activation = "gelu_pytorch_tanh",
                        .has_attention_bias = true,
                        .qk_norm = QkNorm::kHeads,
                        .norm = NormKind::kRmsFp32,
                        .names = Gemma4Names(),
                        .read = ReadGemma4};

}  // namespace sft::plan
