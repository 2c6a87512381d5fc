#include "common/plan/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/json.h"

namespace sft::plan {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxSize = int64_t{1} << 32;

// What sets a family apart, and the defaults of transformers' configuration class for keys missing
// in config.json.
struct Family {
  std::string_view name;
  bool qkv_bias = false;        // always present (Qwen2), not an option
  bool attention_bias = false;  // can be set by a key
  bool mlp_bias = false;        // can be set by a key
  bool qk_norm = false;
  int64_t head_dim = 0;             // 0: hidden / heads
  int64_t kv_heads = 0;             // 0: as many as heads
  int64_t window = 0;               // sliding_window when the key is missing; 0: none
  bool window_is_optional = false;  // use_sliding_window and max_window_layers decide
  double theta = 10000.0;
  int64_t pad_token = -1;
  bool tied_head = false;
  bool has_multipliers = false;  // Granite's four scalars
  bool skips_rope = false;       // no_rope_layers, no_rope_layer_interval
};

constexpr Family kFamilies[] = {
    {.name = "llama", .attention_bias = true, .mlp_bias = true},
    {.name = "mistral", .window = 4096},
    {.name = "qwen2", .qkv_bias = true, .window = 4096, .window_is_optional = true},
    {.name = "qwen3",
     .attention_bias = true,
     .qk_norm = true,
     .head_dim = 128,
     .window = 4096,
     .window_is_optional = true},
    {.name = "granite", .attention_bias = true, .mlp_bias = true, .has_multipliers = true},
    {.name = "smollm3",
     .attention_bias = true,
     .mlp_bias = true,
     .kv_heads = 4,
     .theta = 2'000'000.0,
     .pad_token = 128004,
     .tied_head = true,
     .skips_rope = true},
};

std::string Families() {
  std::string names;
  for (const Family& family : kFamilies) {
    names += (names.empty() ? "" : ", ") + std::string(family.name);
  }
  return names;
}

// Reads keys and keeps the first error; values read after it are meaningless.
class Reader {
 public:
  Reader(const Json& json, std::string where, absl::Status& error)
      : json_(json), where_(std::move(where)), error_(error) {}

  bool HasKey(const char* key) const { return json_.contains(key); }
  // True when the key is present and not null.
  bool Has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }

  template <typename T>
  T Get(const char* key, T fallback) const {
    if (!Has(key)) return fallback;
    try {
      return json_[key].get<T>();
    } catch (const Json::exception&) {
      Fail(key, "has the wrong type: " + DumpJson(json_[key]));
      return fallback;
    }
  }

  template <typename T>
  T Required(const char* key) const {
    if (!Has(key)) Fail(key, "is missing");
    return Get<T>(key, T());
  }

  // Returns 1 on error. The key is required without `fallback`.
  int64_t Size(const char* key, int64_t fallback = 0) const {
    if (!Has(key) && fallback > 0) return fallback;
    if (!Has(key)) {
      Fail(key, "is missing");
      return 1;
    }
    const Json& value = json_[key];
    const bool whole = value.is_number_integer();
    if (whole && value.get<int64_t>() >= 1 && value.get<int64_t>() <= kMaxSize) {
      return value.get<int64_t>();
    }
    Fail(key, "must be a whole number above 0, is " + DumpJson(value));
    return 1;
  }

  bool Flag(const char* key, bool fallback = false) const {
    if (!Has(key) || json_[key].is_boolean()) return Get(key, fallback);
    Fail(key, "must be true or false, is " + DumpJson(json_[key]));
    return fallback;
  }

  // Nullopt for a missing or null object.
  std::optional<Reader> Object(const char* key) const {
    if (!Has(key)) return std::nullopt;
    if (json_[key].is_object()) return Reader(json_[key], where_ + ": " + key, error_);
    Fail(key, "must be an object");
    return std::nullopt;
  }

  void Fail(const char* key, const std::string& problem) const {
    if (error_.ok()) error_ = InvalidArgument(fmt::format("{}: \"{}\" {}", where_, key, problem));
  }

 private:
  const Json& json_;
  std::string where_;
  absl::Status& error_;
};

const Family* FindFamily(const Reader& config) {
  const auto type = config.Required<std::string>("model_type");
  for (const Family& family : kFamilies) {
    if (family.name == type) return &family;
  }
  config.Fail("model_type", fmt::format("\"{}\" is not supported; {} are", type, Families()));
  return nullptr;
}

void ReadShape(const Reader& config, const Family& family, ModelShape& shape) {
  shape.family = family.name;
  shape.vocab = config.Size("vocab_size");
  shape.hidden = config.Size("hidden_size");
  shape.intermediate = config.Size("intermediate_size");
  shape.layers = config.Size("num_hidden_layers");
  shape.heads = config.Size("num_attention_heads");
  shape.kv_heads = config.Size(
      "num_key_value_heads",
      family.kv_heads > 0 && !config.HasKey("num_key_value_heads") ? family.kv_heads : shape.heads);
  shape.head_dim = config.Size("head_dim", family.head_dim > 0
                                               ? family.head_dim
                                               : std::max<int64_t>(1, shape.hidden / shape.heads));
  const bool bias = family.attention_bias && config.Flag("attention_bias");
  shape.qkv_bias = family.qkv_bias || bias;
  shape.output_bias = bias;
  shape.mlp_bias = family.mlp_bias && config.Flag("mlp_bias");
  shape.qk_norm = family.qk_norm;
  shape.tied_head = config.Flag("tie_word_embeddings", family.tied_head);
  if (shape.heads % shape.kv_heads != 0) {
    config.Fail("num_key_value_heads",
                fmt::format("{} does not divide {} attention heads", shape.kv_heads, shape.heads));
  }
  if (shape.head_dim % 2 != 0) config.Fail("head_dim", "must be even");
}

void ReadRopeScaling(const Reader& scaling, const Reader& config, RopeOptions& rope) {
  const auto type =
      scaling.Get<std::string>("rope_type", scaling.Get<std::string>("type", "default"));
  rope.theta = scaling.Get("rope_theta", rope.theta);
  if (scaling.Get("partial_rotary_factor", 1.0) != 1.0) {
    scaling.Fail("partial_rotary_factor", "other than 1 is not supported");
  }
  if (type == "default") return;
  const int64_t max_positions = config.Size("max_position_embeddings");
  rope.original_max_positions = scaling.Size("original_max_position_embeddings", max_positions);
  if (type == "linear") {
    rope.type = RopeType::kLinear;
    rope.factor = scaling.Required<double>("factor");
  } else if (type == "llama3") {
    rope.type = RopeType::kLlama3;
    rope.factor = scaling.Required<double>("factor");
    rope.low_freq_factor = scaling.Required<double>("low_freq_factor");
    rope.high_freq_factor = scaling.Required<double>("high_freq_factor");
  } else if (type == "yarn") {
    rope.type = RopeType::kYarn;
    rope.factor = scaling.Get("factor", static_cast<double>(max_positions) /
                                            static_cast<double>(rope.original_max_positions));
    rope.beta_fast = scaling.Get("beta_fast", rope.beta_fast);
    rope.beta_slow = scaling.Get("beta_slow", rope.beta_slow);
    rope.truncate = scaling.Flag("truncate", true);
    rope.mscale = scaling.Get("mscale", 0.0);
    rope.mscale_all_dim = scaling.Get("mscale_all_dim", 0.0);
    if (scaling.Has("attention_factor")) {
      rope.attention_factor = scaling.Get("attention_factor", 0.0);
    }
  } else {
    scaling.Fail("rope_type", fmt::format("\"{}\" is not supported; default, linear, llama3 and "
                                          "yarn are",
                                          type));
  }
}

RopeOptions ReadRope(const Reader& config, const Family& family) {
  RopeOptions rope;
  rope.theta = config.Get("rope_theta", family.theta);
  // transformers 5 writes rope_parameters, with the base in it; earlier versions wrote
  // rope_scaling.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (const auto scaling = config.Object(key)) ReadRopeScaling(*scaling, config, rope);
  }
  if (config.Get("partial_rotary_factor", 1.0) != 1.0) {
    config.Fail("partial_rotary_factor", "other than 1 is not supported");
  }
  return rope;
}

// Reads layer_types, the window of each layer, for families that use it.
void ReadLayerTypes(const Reader& config, int64_t window, std::vector<LayerOptions>& layers) {
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

void ReadWindows(const Reader& config, const Family& family, std::vector<LayerOptions>& layers) {
  if (family.window == 0) return;
  // An explicit null disables the window.
  int64_t window =
      config.HasKey("sliding_window") ? config.Get<int64_t>("sliding_window", 0) : family.window;
  if (family.window_is_optional && !config.Flag("use_sliding_window")) window = 0;
  if (window == 0) return;
  if (family.window_is_optional && config.Has("layer_types")) {
    ReadLayerTypes(config, window, layers);
    return;
  }
  const int64_t first =
      family.window_is_optional ? config.Get<int64_t>("max_window_layers", 28) : 0;
  for (size_t i = std::max<int64_t>(0, first); i < layers.size(); ++i) layers[i].window = window;
}

// SmolLM3: layers whose no_rope_layers is 0 see no positions; without the list every
// no_rope_layer_interval-th.
void ReadRopeLayers(const Reader& config, ModelConfig& model) {
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
  if (!config.Flag("use_sliding_window") || !config.Has("sliding_window")) return;
  const int64_t window = config.Size("sliding_window");
  if (config.Has("layer_types")) {
    ReadLayerTypes(config, window, layers);
    return;
  }
  for (LayerOptions& layer : layers) layer.window = layer.rope == 0 ? 0 : window;
}

// Granite's scalars. Each must be a number that a product with it cannot make useless.
void ReadMultipliers(const Reader& config, ModelConfig& model) {
  const auto get = [&](const char* key) {
    const double value = config.Get(key, 1.0);
    if (!(value > 0) || !(value < 1e6)) config.Fail(key, "must be a number above 0");
    return value;
  };
  model.embedding_scale = get("embedding_multiplier");
  model.attention_scale = get("attention_multiplier");
  model.residual_scale = get("residual_multiplier");
  model.logit_scale = 1.0 / get("logits_scaling");
}

int64_t MaxPositions(const Reader& config, const RopeOptions& rope) {
  const int64_t said = config.Get<int64_t>("max_position_embeddings", 0);
  // For llama3 max_position_embeddings already includes the scaling.
  const bool stretches = rope.type == RopeType::kLinear || rope.type == RopeType::kYarn;
  const int64_t from = rope.type == RopeType::kYarn ? rope.original_max_positions : said;
  if (said <= 0 || !stretches || !(rope.factor >= 1 && rope.factor <= 1e6)) return said;
  return std::max(said, static_cast<int64_t>(static_cast<double>(from) * rope.factor));
}

void RefuseWhatIsNotSupported(const Reader& config) {
  const auto activation = config.Get<std::string>("hidden_act", "silu");
  if (activation != "silu") {
    config.Fail("hidden_act", fmt::format("\"{}\" is not supported; silu is", activation));
  }
  if (config.Has("quantization_config")) {
    config.Fail("quantization_config",
                "says that the weights are quantised already; use the original weights, they are "
                "quantised when loaded");
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json) {
  const Json json = ParseJson(config_json);
  if (!json.is_object()) return InvalidArgument("config.json is not a JSON object");
  absl::Status error;
  const Reader config(json, "config.json", error);
  const Family* family = FindFamily(config);
  if (family == nullptr) return error;
  ModelConfig model;
  ReadShape(config, *family, model);
  constexpr int64_t kMaxLayers = 1 << 16;
  if (model.layers > kMaxLayers) config.Fail("num_hidden_layers", "is too large");
  if (!error.ok()) return error;
  model.norm_epsilon = config.Get("rms_norm_eps", model.norm_epsilon);
  model.ropes = {ReadRope(config, *family)};
  model.max_positions = MaxPositions(config, model.ropes[0]);
  model.pad_token = config.Get<int64_t>(
      "pad_token_id",
      family->pad_token < 0 || config.HasKey("pad_token_id") ? model.vocab : family->pad_token);
  if (model.pad_token < 0) model.pad_token += model.vocab;  // torch counts from the end
  if (model.pad_token >= model.vocab) model.pad_token = -1;
  model.attention_scale = 1.0 / std::sqrt(static_cast<double>(model.head_dim));
  model.layer_options.resize(model.layers);
  ReadWindows(config, *family, model.layer_options);
  if (family->skips_rope) ReadRopeLayers(config, model);
  if (family->has_multipliers) ReadMultipliers(config, model);
  RefuseWhatIsNotSupported(config);
  if (!error.ok()) return error;
  return model;
}

}  // namespace sft::plan
