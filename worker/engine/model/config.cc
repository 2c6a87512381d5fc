#include "worker/engine/model/config.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/base/json.h"
#include "worker/engine/base/error.h"

namespace sft::engine {

namespace {

using Json = nlohmann::json;

// What transformers' configuration class of a family assumes where config.json is silent.
struct FamilyDefaults {
  std::string_view name;
  bool qkv_bias;           // always there (Qwen2), not an option
  bool reads_bias_option;  // attention_bias, mlp_bias
  bool head_norm;
  int64_t head_size;        // 0: hidden / heads
  int64_t window;           // sliding_window when the key is missing; 0: none
  bool window_is_optional;  // use_sliding_window and max_window_layers decide
};

constexpr FamilyDefaults kFamilies[] = {
    {"llama", false, true, false, 0, 0, false},
    {"mistral", false, false, false, 0, 4096, false},
    {"qwen2", true, false, false, 0, 4096, true},
    {"qwen3", false, true, true, 128, 4096, true},
};

class Reader {
 public:
  Reader(const Json& json, std::string origin) : json_(json), origin_(std::move(origin)) {}

  bool HasKey(const char* key) const { return json_.contains(key); }
  // Present and not null.
  bool Has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }

  template <typename T>
  T Get(const char* key) const {
    if (!Has(key)) Fail(key, "is missing");
    try {
      return json_[key].get<T>();
    } catch (const Json::exception&) {
      Fail(key, "has the wrong type: " + DumpJson(json_[key]));
    }
  }

  template <typename T>
  T Get(const char* key, T fallback) const {
    return Has(key) ? Get<T>(key) : fallback;
  }

  int64_t Positive(const char* key) const {
    const int64_t value = Get<int64_t>(key);
    if (value <= 0) Fail(key, "must be positive, is " + std::to_string(value));
    return value;
  }

  // nullopt for a missing or null object.
  std::optional<Reader> Object(const char* key) const {
    if (!Has(key)) return std::nullopt;
    if (!json_[key].is_object()) Fail(key, "must be an object");
    return Reader(json_[key], origin_ + ": " + key);
  }

  [[noreturn]] void Fail(const std::string& key, const std::string& problem) const {
    throw UserError(origin_ + ": \"" + key + "\" " + problem, "bad_model",
                    "use a model directory as transformers writes it");
  }

 private:
  const Json& json_;
  std::string origin_;
};

const FamilyDefaults& FindFamily(const Reader& config, const std::string& origin) {
  const auto type = config.Get<std::string>("model_type");
  for (const FamilyDefaults& family : kFamilies) {
    if (family.name == type) return family;
  }
  throw UserError(origin + ": models of type \"" + type + "\" are not supported", "bad_model",
                  "supported are " + SupportedFamilies());
}

void ReadRopeScaling(const Reader& scaling, const Reader& config, RopeOptions& rope) {
  const std::string type = scaling.Has("rope_type") ? scaling.Get<std::string>("rope_type")
                                                    : scaling.Get<std::string>("type", "default");
  rope.theta = scaling.Get<double>("rope_theta", rope.theta);
  if (scaling.Get<double>("partial_rotary_factor", 1.0) != 1.0) {
    scaling.Fail("partial_rotary_factor", "other than 1 is not supported");
  }
  if (type == "default") return;
  rope.original_max_positions = scaling.Get<int64_t>(
      "original_max_position_embeddings", config.Get<int64_t>("max_position_embeddings"));
  if (type == "linear") {
    rope.type = RopeType::kLinear;
    rope.factor = scaling.Get<double>("factor");
  } else if (type == "llama3") {
    rope.type = RopeType::kLlama3;
    rope.factor = scaling.Get<double>("factor");
    rope.low_freq_factor = scaling.Get<double>("low_freq_factor");
    rope.high_freq_factor = scaling.Get<double>("high_freq_factor");
  } else if (type == "yarn") {
    rope.type = RopeType::kYarn;
    rope.factor =
        scaling.Get<double>("factor", config.Get<double>("max_position_embeddings") /
                                          static_cast<double>(rope.original_max_positions));
    rope.beta_fast = scaling.Get<double>("beta_fast", rope.beta_fast);
    rope.beta_slow = scaling.Get<double>("beta_slow", rope.beta_slow);
    rope.truncate = scaling.Get<bool>("truncate", true);
    rope.mscale = scaling.Get<double>("mscale", 0.0);
    rope.mscale_all_dim = scaling.Get<double>("mscale_all_dim", 0.0);
    if (scaling.Has("attention_factor")) {
      rope.attention_factor = scaling.Get<double>("attention_factor");
    }
  } else {
    scaling.Fail("rope_type", "\"" + type +
                                  "\" is not supported; supported are default, linear, "
                                  "llama3 and yarn");
  }
}

RopeOptions ReadRope(const Reader& config) {
  RopeOptions rope;
  rope.theta = config.Get<double>("rope_theta", rope.theta);
  // transformers 5 writes rope_parameters, with the base in it; before it was rope_scaling.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (auto scaling = config.Object(key)) ReadRopeScaling(*scaling, config, rope);
  }
  if (config.Get<double>("partial_rotary_factor", 1.0) != 1.0) {
    config.Fail("partial_rotary_factor", "other than 1 is not supported");
  }
  return rope;
}

std::vector<int64_t> ReadWindows(const Reader& config, const FamilyDefaults& family,
                                 int64_t layers) {
  std::vector<int64_t> windows(layers, 0);
  if (family.window == 0) return windows;
  // An explicit null switches the window off.
  int64_t window =
      config.HasKey("sliding_window") ? config.Get<int64_t>("sliding_window", 0) : family.window;
  if (family.window_is_optional && !config.Get<bool>("use_sliding_window", false)) window = 0;
  if (window == 0) return windows;
  if (family.window_is_optional && config.Has("layer_types")) {
    const auto types = config.Get<std::vector<std::string>>("layer_types");
    if (static_cast<int64_t>(types.size()) != layers) {
      config.Fail("layer_types",
                  "names " + std::to_string(types.size()) + " layers of " + std::to_string(layers));
    }
    for (int64_t i = 0; i < layers; ++i) {
      if (types[i] == "sliding_attention") {
        windows[i] = window;
      } else if (types[i] != "full_attention") {
        config.Fail("layer_types", "has \"" + types[i] + "\", which is not supported");
      }
    }
    return windows;
  }
  const int64_t first =
      family.window_is_optional ? config.Get<int64_t>("max_window_layers", 28) : 0;
  for (int64_t i = first; i < layers; ++i) windows[i] = window;
  return windows;
}

void CheckShapes(const Reader& config, const DecoderConfig& c) {
  if (c.heads % c.key_heads != 0) {
    config.Fail("num_key_value_heads", std::to_string(c.key_heads) + " does not divide " +
                                           std::to_string(c.heads) + " attention heads");
  }
  if (c.head_size % 2 != 0) config.Fail("head_dim", "must be even");
  const auto activation = config.Get<std::string>("hidden_act", "silu");
  if (activation != "silu") {
    config.Fail("hidden_act", "\"" + activation + "\" is not supported; supported is silu");
  }
  if (config.Has("quantization_config")) {
    config.Fail("quantization_config",
                "says that the weights are quantised already; use the "
                "original weights, they are quantised when loaded");
  }
}

}  // namespace

std::string SupportedFamilies() {
  std::string names;
  for (const FamilyDefaults& family : kFamilies) {
    if (!names.empty()) names += ", ";
    names += family.name;
  }
  return names;
}

DecoderConfig DecoderConfig::Parse(std::string_view text, const std::string& origin) {
  const Json json = ParseJson(text);
  if (!json.is_object()) {
    throw UserError(origin + " is not a JSON object", "bad_model",
                    "use a model directory as transformers writes it");
  }
  const Reader config(json, origin);
  const FamilyDefaults& family = FindFamily(config, origin);
  DecoderConfig c;
  c.family = family.name;
  c.vocabulary = config.Positive("vocab_size");
  c.hidden = config.Positive("hidden_size");
  c.intermediate = config.Positive("intermediate_size");
  c.layers = config.Positive("num_hidden_layers");
  c.heads = config.Positive("num_attention_heads");
  c.key_heads =
      config.Has("num_key_value_heads") ? config.Positive("num_key_value_heads") : c.heads;
  c.head_size = config.Has("head_dim") ? config.Positive("head_dim")
                : family.head_size > 0 ? family.head_size
                                       : c.hidden / c.heads;
  c.max_positions = config.Positive("max_position_embeddings");
  c.norm_epsilon = config.Get<double>("rms_norm_eps", c.norm_epsilon);
  c.rope = ReadRope(config);
  const bool bias = family.reads_bias_option && config.Get<bool>("attention_bias", false);
  c.qkv_bias = family.qkv_bias || bias;
  c.output_bias = bias;
  c.mlp_bias = family.name == "llama" && config.Get<bool>("mlp_bias", false);
  c.head_norm = family.head_norm;
  c.tied_head = config.Get<bool>("tie_word_embeddings", false);
  c.pad_token = config.Get<int64_t>("pad_token_id", c.vocabulary);
  if (c.pad_token < 0) c.pad_token += c.vocabulary;  // torch counts from the end
  if (c.pad_token >= c.vocabulary) c.pad_token = -1;
  c.windows = ReadWindows(config, family, c.layers);
  CheckShapes(config, c);
  return c;
}

DecoderConfig DecoderConfig::Read(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "config.json";
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw UserError("cannot read " + path.string(), "bad_model",
                    "give a model directory that holds config.json, the weights and the tokenizer");
  }
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return Parse(text, path.string());
}

}  // namespace sft::engine
