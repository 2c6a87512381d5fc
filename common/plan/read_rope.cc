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

constexpr char kOriginal[] = "original_max_position_embeddings";

std::string TypeOf(const ConfigReader& scaling) {
  return scaling.Get<std::string>("rope_type", scaling.Get<std::string>("type", "default"));
}

void ReadYarn(const ConfigReader& scaling, const ConfigReader& config, RopeOptions& rope) {
  rope.type = RopeType::kYarn;
  rope.factor = scaling.Has("factor")
                    ? scaling.Get("factor", 1.0)
                    : static_cast<double>(config.Size("max_position_embeddings")) /
                          static_cast<double>(rope.original_max_positions);
  rope.beta_fast = scaling.Get("beta_fast", rope.beta_fast);
  rope.beta_slow = scaling.Get("beta_slow", rope.beta_slow);
  rope.truncate = !scaling.HasKey("truncate") || scaling.Flag("truncate", false);  // null: false
  rope.mscale = scaling.Get("mscale", 0.0);
  rope.mscale_all_dim = scaling.Get("mscale_all_dim", 0.0);
  if (scaling.Has("attention_factor")) {
    rope.attention_factor = scaling.Get("attention_factor", 0.0);
  }
}

}  // namespace

std::optional<ConfigReader> RopeObject(const ConfigReader& config) {
  const auto scaling = config.Object("rope_scaling"), parameters = config.Object("rope_parameters");
  if (!scaling) return parameters;
  if (parameters && parameters->Has("rope_theta") && !scaling->Has("rope_theta") &&
      !config.Has("rope_theta")) {
    config.Fail("rope_scaling",
                "stands beside rope_parameters, which then counts for nothing, and has no "
                "rope_theta: write all into rope_parameters and leave rope_scaling out");
  }
  return scaling;
}

int64_t ReadOriginalPositions(const ConfigReader& scaling, const ConfigReader& config,
                              bool of_layers) {
  if (!of_layers && config.Has(kOriginal)) return config.Size(kOriginal);
  if (scaling.Has(kOriginal)) return scaling.Size(kOriginal);
  return config.Size("max_position_embeddings");
}

void ReadRopeParameters(const ConfigReader& scaling, const ConfigReader& config, RopeOptions& rope,
                        bool of_layers) {
  const std::string type = TypeOf(scaling);
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
  rope.original_max_positions = ReadOriginalPositions(scaling, config, of_layers);
  if (type == "yarn") return ReadYarn(scaling, config, rope);
  rope.type = RopeType::kLlama3;
  rope.factor = scaling.Required<double>("factor");
  rope.low_freq_factor = scaling.Required<double>("low_freq_factor");
  rope.high_freq_factor = scaling.Required<double>("high_freq_factor");
}

RopeOptions ReadRope(const ConfigReader& config, double default_theta) {
  RopeOptions rope;
  rope.theta = config.Get("rope_theta", default_theta);
  if (const auto scaling = RopeObject(config)) {
    ReadRopeParameters(*scaling, config, rope);
    if (rope.type != RopeType::kProportional) CheckWholeHeadsTurn(*scaling);
  }
  CheckWholeHeadsTurn(config);
  return rope;
}

void ReadPartialRope(const ConfigReader& config, double default_theta, double rotated,
                     ModelConfig& model) {
  constexpr char kPart[] = "partial_rotary_factor";
  if (config.HasKey(kPart) && !config.Has(kPart)) {
    config.Fail(kPart, "is null: write the share of a head that is rotated, or leave it out");
  }
  RopeOptions rope{.theta = config.Get("rope_theta", default_theta),
                   .rotated = config.Factor(kPart, rotated)};
  if (const auto scaling = RopeObject(config)) {
    rope.rotated = scaling->Factor(kPart, rope.rotated);
    const std::string type = TypeOf(*scaling);
    if (type != "default" && type != "linear" && type != "yarn") {
      scaling->Fail("rope_type", fmt::format("\"{}\" is not supported where a part of each head is "
                                             "rotated; default, linear and yarn are",
                                             type));
    } else {
      ReadRopeParameters(*scaling, config, rope);
    }
  }
  if (rope.rotated > 1.0) config.Fail(kPart, "must be at most 1");
  model.ropes[0] = rope;
  model.max_positions =
      ReadMaxPositions(config, "max_position_embeddings", rope, model.max_positions);
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
