#include "common/plan/read_rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace sft::plan {
namespace {

void CheckWholeHeadsTurn(const ConfigReader& config) {
  constexpr char kKey[] = "partial_rotary_factor";
  const double factor = config.Get(kKey, 1.0);
  if (factor == 1.0) return;
  config.Fail(kKey, fmt::format("{} is not supported in this family, whose heads are rotated whole "
                                "(1, or no such key); models that rotate a part of each head are "
                                "read of phi3, glm4_moe, qwen3_5 and qwen3_next",
                                factor));
}

}  // namespace

void ReadRopeParameters(const ConfigReader& scaling, const ConfigReader& config,
                        RopeOptions& rope) {
  const auto type =
      scaling.Get<std::string>("rope_type", scaling.Get<std::string>("type", "default"));
  rope.theta = scaling.Get("rope_theta", rope.theta);
  if (type == "proportional") {
    rope.type = RopeType::kProportional;
    rope.rotated = scaling.Get("partial_rotary_factor", 1.0);
    rope.factor = scaling.HasKey("factor") ? scaling.Factor("factor", 1.0) : 1.0;
    if (!(rope.rotated > 0.0 && rope.rotated <= 1.0)) {
      scaling.Fail("partial_rotary_factor", "must be above 0 and at most 1");
    }
    return;
  }
  CheckWholeHeadsTurn(scaling);
  if (type == "default") return;
  if (type == "linear") {
    rope.type = RopeType::kLinear;
    rope.factor = scaling.Required<double>("factor");
    return;
  }
  if (type != "llama3" && type != "yarn") {
    scaling.Fail("rope_type", fmt::format("\"{}\" is not supported; default, linear, llama3, "
                                          "proportional and yarn are",
                                          type));
    return;
  }
  const int64_t max_positions = config.Size("max_position_embeddings");
  rope.original_max_positions = scaling.Size("original_max_position_embeddings", max_positions);
  if (type == "llama3") {
    rope.type = RopeType::kLlama3;
    rope.factor = scaling.Required<double>("factor");
    rope.low_freq_factor = scaling.Required<double>("low_freq_factor");
    rope.high_freq_factor = scaling.Required<double>("high_freq_factor");
  } else {
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
  }
}

RopeOptions ReadRope(const ConfigReader& config, double default_theta) {
  RopeOptions rope;
  rope.theta = config.Get("rope_theta", default_theta);
  // transformers 5 writes rope_parameters, with the base in it; earlier versions wrote
  // rope_scaling.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (const auto scaling = config.Object(key)) ReadRopeParameters(*scaling, config, rope);
  }
  CheckWholeHeadsTurn(config);
  return rope;
}

RopeOptions ReadPartialRope(const ConfigReader& config, double default_theta, double rotated) {
  RopeOptions rope{.theta = config.Get("rope_theta", default_theta),
                   .rotated = config.Factor("partial_rotary_factor", rotated)};
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto parameters = config.Object(key);
    if (!parameters) continue;
    rope.theta = parameters->Get("rope_theta", rope.theta);
    rope.rotated = parameters->Factor("partial_rotary_factor", rope.rotated);
    const auto type = parameters->Get("rope_type", parameters->Get("type", std::string("default")));
    if (type == "default") continue;
    parameters->Fail("rope_type",
                     fmt::format("\"{}\" is not supported where a part of each head is rotated; "
                                 "default is",
                                 type));
  }
  if (rope.rotated > 1.0) config.Fail("partial_rotary_factor", "must be at most 1");
  return rope;
}

int64_t ReadMaxPositions(const ConfigReader& config, const char* key, const RopeOptions& rope,
                         int64_t fallback) {
  const int64_t said = config.Get<int64_t>(key, fallback);
  // For llama3 max_position_embeddings already includes the scaling.
  const bool stretches = rope.type == RopeType::kLinear || rope.type == RopeType::kYarn;
  const int64_t from = rope.type == RopeType::kYarn ? rope.original_max_positions : said;
  if (said <= 0 || !stretches || !(rope.factor >= 1 && rope.factor <= 1e6)) return said;
  return std::max(said, static_cast<int64_t>(static_cast<double>(from) * rope.factor));
}

}  // namespace sft::plan
