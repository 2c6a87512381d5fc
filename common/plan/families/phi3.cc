#include <fmt/format.h>

#include "common/base/round.h"
#include "common/plan/families/family.h"
#include "common/plan/read_rope.h"

namespace sft::plan {
namespace {

// The divisors of longrope, one for each pair of elements that is rotated.
std::vector<double> ReadFactors(const ConfigReader& scaling, const char* key, int64_t pairs) {
  auto factors = scaling.Required<std::vector<double>>(key);
  if (static_cast<int64_t>(factors.size()) != pairs) {
    scaling.Fail(key, fmt::format("has {} numbers, not {}", factors.size(), pairs));
  }
  for (const double factor : factors) {
    if (!(factor > 0)) scaling.Fail(key, "must hold numbers above 0");
  }
  return factors;
}

void ReadLongRope(const ConfigReader& scaling, const ConfigReader& config, ModelConfig& model) {
  RopeOptions& rope = model.ropes[0];
  const int64_t longest = config.Size("max_position_embeddings", 4096);
  rope.type = RopeType::kLongRope;
  rope.original_max_positions = config.Size("original_max_position_embeddings", 4096);
  rope.factor = scaling.Get(
      "factor", static_cast<double>(longest) / static_cast<double>(rope.original_max_positions));
  const int64_t pairs =
      CeilDiv(static_cast<int64_t>(static_cast<double>(model.head_dim) * rope.rotated), 2);
  rope.short_factors = ReadFactors(scaling, "short_factor", pairs);
  rope.long_factors = ReadFactors(scaling, "long_factor", pairs);
  if (scaling.Has("attention_factor")) {
    rope.attention_factor = scaling.Get("attention_factor", 1.0);
  }
}

// Old files call longrope "su" or "yarn".
void ReadPhi3(const ConfigReader& config, ModelConfig& model) {
  RopeOptions& rope = model.ropes[0];
  rope = {.theta = config.Get("rope_theta", 10'000.0),
          .rotated = config.Factor("partial_rotary_factor", 1.0)};
  const auto scaling =
      config.Object(config.Has("rope_scaling") ? "rope_scaling" : "rope_parameters");
  if (scaling) {
    rope.theta = scaling->Get("rope_theta", rope.theta);
    rope.rotated = scaling->Factor("partial_rotary_factor", rope.rotated);
    const auto type = scaling->Get("rope_type", scaling->Get("type", std::string("default")));
    if (type == "longrope" || type == "su" || type == "yarn") {
      ReadLongRope(*scaling, config, model);
    } else if (type != "default") {
      scaling->Fail("rope_type", fmt::format("\"{}\" is not supported; longrope is", type));
    }
  }
  if (rope.rotated > 1.0) config.Fail("partial_rotary_factor", "must be at most 1");
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attention_dropout"}) {
    const double dropout = config.Get(key, 0.0);
    if (dropout == 0.0) continue;
    config.Fail(key, fmt::format("{} is not supported: phi3 models are trained without dropout of "
                                 "their own; set it to 0 in config.json (lora.dropout is that of "
                                 "adapters)",
                                 dropout));
  }
  const int64_t window = ReadWindow(config, 0);
  for (LayerOptions& layer : model.layer_options) layer.window = window;
}

}  // namespace

const Family kPhi3 = {.name = "phi3",
                      .defaults = {.hidden = 3072,
                                   .intermediate = 8192,
                                   .layers = 32,
                                   .heads = 32,
                                   .vocab = 32'064,
                                   .max_positions = 4096,
                                   .pad_token = 32'000,
                                   .epsilon = 1e-5},
                      // Queries, keys and values are one linear, gate and up another.
                      .names =
                          [] {
                            TensorNames names = kLlamaNames;
                            names.q = "self_attn.qkv_proj";
                            names.gate = "mlp.gate_up_proj";
                            names.k = names.v = names.up = nullptr;
                            return names;
                          }(),
                      .reads_rope = true,
                      .read = ReadPhi3};

}  // namespace sft::plan
