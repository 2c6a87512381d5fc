#include "common/plan/model_shape.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"

namespace sft::plan {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxSize = int64_t{1} << 32;

// `fallback` 0: the key is required.
absl::Status ReadSize(const Json& config, const char* key, int64_t fallback, int64_t* out) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) {
    *out = fallback;
    if (fallback > 0) return absl::OkStatus();
    return InvalidArgument(fmt::format("config.json has no {}", key));
  }
  if (!found->is_number_integer() || found->get<int64_t>() < 1 ||
      found->get<int64_t>() > kMaxSize) {
    return InvalidArgument(fmt::format("config.json: {} must be a whole number above 0, but is {}",
                                       key, found->dump()));
  }
  *out = found->get<int64_t>();
  return absl::OkStatus();
}

absl::Status ReadFlag(const Json& config, const char* key, bool fallback, bool* out) {
  const auto found = config.find(key);
  *out = fallback;
  if (found == config.end() || found->is_null()) return absl::OkStatus();
  if (!found->is_boolean()) {
    return InvalidArgument(
        fmt::format("config.json: {} must be true or false, but is {}", key, found->dump()));
  }
  *out = found->get<bool>();
  return absl::OkStatus();
}

// Which projections have biases, and the other things that a family fixes.
absl::Status ReadFamily(const Json& config, ModelShape* shape) {
  bool attention_bias = false;
  if (shape->family == "llama") {
    SFT_RETURN_IF_ERROR(ReadFlag(config, "attention_bias", false, &attention_bias));
    SFT_RETURN_IF_ERROR(ReadFlag(config, "mlp_bias", false, &shape->mlp_bias));
    shape->qkv_bias = shape->output_bias = attention_bias;
  } else if (shape->family == "qwen2") {
    shape->qkv_bias = true;
  } else if (shape->family == "qwen3") {
    SFT_RETURN_IF_ERROR(ReadFlag(config, "attention_bias", false, &attention_bias));
    shape->qkv_bias = shape->output_bias = attention_bias;
    shape->qk_norm = true;
  } else if (shape->family != "mistral") {
    return InvalidArgument(fmt::format(
        "config.json: model_type \"{}\" is not supported yet; llama, mistral, qwen2 and qwen3 are",
        shape->family));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelShape> ParseModelShape(std::string_view config_json) {
  const Json config = ParseJson(config_json);
  if (!config.is_object()) return InvalidArgument("config.json is not a JSON object");
  ModelShape shape;
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) {
    return InvalidArgument("config.json has no model_type");
  }
  shape.family = type->get<std::string>();
  SFT_RETURN_IF_ERROR(ReadFamily(config, &shape));
  SFT_RETURN_IF_ERROR(ReadSize(config, "hidden_size", 0, &shape.hidden));
  SFT_RETURN_IF_ERROR(ReadSize(config, "num_hidden_layers", 0, &shape.layers));
  SFT_RETURN_IF_ERROR(ReadSize(config, "num_attention_heads", 0, &shape.heads));
  SFT_RETURN_IF_ERROR(ReadSize(config, "num_key_value_heads", shape.heads, &shape.kv_heads));
  // Qwen3's own default is not hidden / heads.
  const int64_t head_dim = shape.family == "qwen3" ? 128 : shape.hidden / shape.heads;
  SFT_RETURN_IF_ERROR(ReadSize(config, "head_dim", head_dim, &shape.head_dim));
  SFT_RETURN_IF_ERROR(ReadSize(config, "intermediate_size", 0, &shape.intermediate));
  SFT_RETURN_IF_ERROR(ReadSize(config, "vocab_size", 0, &shape.vocab));
  SFT_RETURN_IF_ERROR(ReadFlag(config, "tie_word_embeddings", false, &shape.tied_head));
  if (shape.heads % shape.kv_heads != 0) {
    return InvalidArgument(
        fmt::format("config.json: {} attention heads cannot share {} key/value "
                    "heads evenly",
                    shape.heads, shape.kv_heads));
  }
  return shape;
}

}  // namespace sft::plan
