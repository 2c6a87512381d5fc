#include "common/plan/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/plan/families/family.h"
#include "common/plan/read_rope.h"

namespace sft::plan {

bool ModelShape::Lends(int64_t layer) const {
  return std::any_of(layer_shapes.begin(), layer_shapes.end(),
                     [layer](const LayerShape& other) { return other.keys_of == layer; });
}

bool ModelShape::HasExperts() const {
  return std::any_of(layer_shapes.begin(), layer_shapes.end(),
                     [](const LayerShape& layer) { return layer.experts > 0; });
}

int64_t ModelShape::LargestHead() const {
  int64_t largest = head_dim;
  for (const LayerShape& layer : layer_shapes) largest = std::max(largest, layer.head_dim);
  return largest;
}

int64_t ModelShape::WidestRow() const {
  int64_t widest = std::max(2 * intermediate, hidden);
  for (const LayerShape& layer : layer_shapes) {
    widest = std::max(widest, 2 * layer.intermediate);
    widest = std::max(widest, layer.chosen * std::max(2 * layer.intermediate, hidden));
    widest = std::max(widest, 2 * layer.shared);
  }
  return widest;
}

namespace {

using Json = nlohmann::json;

void CheckSize(const ConfigReader& config, const ConfigKeys& keys, const ModelShape& shape) {
  const double width =
      static_cast<double>(shape.heads + 2 * shape.kv_heads) * static_cast<double>(shape.head_dim) +
      3.0 * static_cast<double>(shape.intermediate);
  const double weights =
      static_cast<double>(shape.hidden) *
      (static_cast<double>(shape.layers) * width + 2.0 * static_cast<double>(shape.vocab));
  if (weights < kMostWeights) return;
  config.Fail(keys.hidden, fmt::format("{} with the other sizes makes {:.0e} weights, more than "
                                       "any model has",
                                       shape.hidden, weights));
}

void ReadShape(const ConfigReader& config, const Family& family, ModelShape& shape) {
  const ConfigDefaults& defaults = family.defaults;
  const ConfigKeys& keys = family.keys;
  shape.family = family.name;
  shape.vocab = config.Size("vocab_size", defaults.vocab);
  shape.hidden = config.Size(keys.hidden, defaults.hidden);
  shape.intermediate =
      config.Size(keys.intermediate, defaults.intermediate_per_hidden > 0
                                         ? defaults.intermediate_per_hidden * shape.hidden
                                         : defaults.intermediate);
  shape.layers = config.Size(keys.layers, defaults.layers);
  shape.heads = config.Size(keys.heads, defaults.heads);
  // An explicit null is as many as heads, whatever the family's default.
  const bool default_kv = defaults.kv_heads > 0 && !config.HasKey("num_key_value_heads");
  shape.kv_heads = config.Size("num_key_value_heads", default_kv ? defaults.kv_heads : shape.heads);
  shape.head_dim = config.Size("head_dim", defaults.head_dim > 0
                                               ? defaults.head_dim
                                               : std::max<int64_t>(1, shape.hidden / shape.heads));
  const bool bias = family.has_attention_bias && config.Flag("attention_bias");
  shape.qkv_bias = family.qkv_bias || bias;
  shape.output_bias = bias;
  shape.mlp_bias = family.has_mlp_bias && config.Flag("mlp_bias");
  shape.qk_norm = family.qk_norm;
  shape.norm = family.norm;
  shape.tied_head = config.Flag("tie_word_embeddings", defaults.tied_head);
  if (shape.heads % shape.kv_heads != 0) {
    config.Fail("num_key_value_heads",
                fmt::format("{} does not divide {} attention heads", shape.kv_heads, shape.heads));
  }
  if (!config.Has("head_dim") && defaults.head_dim == 0 && shape.hidden % shape.heads != 0) {
    config.Fail(keys.heads, fmt::format("{} does not divide {} {}, and there is no head_dim",
                                        shape.heads, keys.hidden, shape.hidden));
  }
  if (shape.head_dim % 2 != 0) config.Fail("head_dim", "must be even");
  CheckSize(config, keys, shape);
}

ActivationKind ReadActivation(const ConfigReader& config, const Family& family) {
  const auto activation = config.Get(family.keys.activation, std::string(family.activation));
  if (activation == "silu" || activation == "swish") return ActivationKind::kSilu;
  for (const char* name : {"gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate"}) {
    if (activation == name) return ActivationKind::kGeluTanh;
  }
  config.Fail(family.keys.activation,
              fmt::format("\"{}\" is not supported; silu and gelu_pytorch_tanh are", activation));
  return ActivationKind::kSilu;
}

int64_t ReadPadToken(const ConfigReader& config, const Family& family, int64_t vocab) {
  const int64_t fallback = config.HasKey("pad_token_id") ? -1 : family.defaults.pad_token;
  int64_t token = config.Get<int64_t>("pad_token_id", fallback < 0 ? vocab : fallback);
  if (token < 0) token += vocab;  // torch counts from the end
  return token < vocab ? token : -1;
}

ModelConfig ReadModel(const ConfigReader& config, const Family& family) {
  ModelConfig model;
  ReadShape(config, family, model);
  constexpr int64_t kMaxLayers = 1 << 16;
  if (model.layers > kMaxLayers) config.Fail(family.keys.layers, "is too large");
  if (!config.ok()) return model;
  model.activation = ReadActivation(config, family);
  model.norm_epsilon = config.Get(family.keys.epsilon, family.defaults.epsilon);
  model.ropes = {family.reads_rope ? RopeOptions() : ReadRope(config, family.defaults.theta)};
  model.max_positions = ReadMaxPositions(config, family.keys.max_positions, model.ropes[0],
                                         family.defaults.max_positions);
  model.pad_token = ReadPadToken(config, family, model.vocab);
  model.attention_scale = 1.0 / std::sqrt(static_cast<double>(model.head_dim));
  model.layer_options.resize(model.layers);
  model.dropout_left_out = config.Get("attention_dropout", 0.0);
  if (family.read != nullptr) family.read(config, model);
  return model;
}

void CheckMxfp4(const ConfigReader& config, const ModelConfig& model) {
  const ConfigReader quantization = *config.Object("quantization_config");
  if (!model.HasExperts() || !NamesOf(model).transposed_stacks) {
    quantization.Fail("quant_method",
                      "\"mxfp4\" is read of gpt_oss's experts alone: use the original "
                      "weights, which QLoRA quantises when they are loaded");
    return;
  }
  for (const int64_t inputs : {model.hidden, model.Layer(0).intermediate}) {
    if (inputs % kMxfp4Block == 0) continue;
    quantization.Fail("quant_method",
                      fmt::format("\"mxfp4\" has blocks of {} inputs, which experts with {} do not "
                                  "divide into: hidden_size and intermediate_size must be those of "
                                  "the model's weights",
                                  kMxfp4Block, inputs));
  }
}

// transformers 5 writes "dtype", earlier versions "torch_dtype". Only shown: nothing depends on it.
std::string ReadDtype(const Json& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto found = config.find(key);
    if (found != config.end() && found->is_string()) return found->get<std::string>();
  }
  return {};
}

// Files of Ministral 8B say "mistral", and what its layers are.
std::string FamilyOf(const ConfigReader& config, const std::string& type) {
  return type == "mistral" && config.HasKey("layer_types") ? "ministral" : type;
}

void FailUnknownFamily(const ConfigReader& config, const std::string& type) {
  constexpr size_t kShown = 64;
  const std::string reason = ReasonAgainst(type, config);
  config.Fail("model_type", fmt::format("\"{}\" is not supported{}; {} are", type.substr(0, kShown),
                                        reason.empty() ? "" : " (" + reason + ")", FamilyNames()));
}

// The decoder inside a multimodal model.
ModelConfig ReadWrapped(const ConfigReader& config, const Wrapper& wrapper) {
  const std::optional<ConfigReader> text = config.Object("text_config");
  if (!text) {
    config.Fail("text_config", "is missing");
    return ModelConfig();
  }
  const auto type = text->Get("model_type", std::string(wrapper.text_family));
  const Family* family = FindFamily(type);
  if (family == nullptr) {
    FailUnknownFamily(*text, type);
    return ModelConfig();
  }
  ModelConfig model = ReadModel(*text, *family);
  model.prefix = wrapper.prefix;
  // The outer one decides, where there is one.
  model.tied_head = config.Flag("tie_word_embeddings", model.tied_head);
  return model;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json) {
  const Json json = ParseJson(config_json);
  if (!json.is_object()) return InvalidArgument("config.json is not a JSON object");
  absl::Status error;
  const ConfigReader config(json, "config.json", error);
  const auto type = config.Required<std::string>("model_type");
  ModelConfig model;
  if (const Wrapper* wrapper = FindWrapper(type)) {
    model = ReadWrapped(config, *wrapper);
  } else if (const Family* family = FindFamily(FamilyOf(config, type))) {
    model = ReadModel(config, *family);
  } else {
    FailUnknownFamily(config, type);
  }
  const std::optional<ConfigReader> text =
      FindWrapper(type) != nullptr ? config.Object("text_config") : std::nullopt;
  const bool in_text = text && !config.Has("quantization_config");
  const ConfigReader& storing = in_text ? *text : config;
  model.stored = ReadStoredWeights(storing);
  if (model.stored.form == StoredForm::kMxfp4) CheckMxfp4(storing, model);
  model.dtype = ReadDtype(json);
  if (model.dtype.empty() && text) model.dtype = ReadDtype(json["text_config"]);
  if (!error.ok()) return error;
  return model;
}

}  // namespace sft::plan
