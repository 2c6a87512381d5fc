#include "worker/engine/export/gguf_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/engine/base/error.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/model_text.h"
#include "worker/engine/export/gguf_checks.h"
#include "worker/engine/export/gguf_family.h"
#include "worker/engine/export/gguf_tokenizer.h"
#include "worker/engine/model/families.h"
#include "worker/engine/train/base_weights.h"

namespace sft::engine {
namespace {

using at::Tensor;

// general.file_type, as llama.cpp numbers it.
uint32_t FileType(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return 0;
    case GgmlType::kQ8_0:
      return 7;
    case GgmlType::kBf16:
      return 32;
  }
  return 0;
}

bool IsOf(std::string_view name, std::string_view module) {
  return name.find(module) != std::string_view::npos;
}

// Rows in the order in which llama.cpp's rope turns them: neighbours instead of halves.
Tensor TurnRows(const Tensor& rows, int64_t heads) {
  std::vector<int64_t> split = {heads, 2, rows.size(0) / heads / 2};
  if (rows.dim() == 2) split.push_back(rows.size(1));
  return rows.reshape(split).transpose(1, 2).reshape(rows.sizes());
}

// What Llama 3's scaling divides the frequencies by.
Tensor RopeFactors(const plan::RopeOptions& rope, int64_t head_dim) {
  const double original = static_cast<double>(rope.original_max_positions);
  std::vector<float> factors;
  for (int64_t i = 0; i < head_dim; i += 2) {
    const double frequency =
        std::pow(rope.theta, -static_cast<double>(i) / static_cast<double>(head_dim));
    const double length = 2 * std::numbers::pi / frequency;
    if (length < original / rope.high_freq_factor) {
      factors.push_back(1);
    } else if (length > original / rope.low_freq_factor) {
      factors.push_back(static_cast<float>(rope.factor));
    } else {
      const double smooth = (original / length - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
      factors.push_back(static_cast<float>(1 / ((1 - smooth) / rope.factor + smooth)));
    }
  }
  return at::tensor(factors);
}

class GgufModel {
 public:
  GgufModel(const GgufOptions& options, const ModelConfig& config)
      : options_(options),
        config_(config),
        layout_(MakeLayout(config)),
        family_(*FindGgufFamily(config.family)),
        architecture_(family_.architecture),
        rope_(MainRope(config)) {}

  void Write() {
    GgufKeys keys;
    AddGeneral(keys);
    AddShapes(keys);
    AddTokenizer(options_.model_dir, config_.vocab, architecture_, keys);
    const BaseWeights base(options_.model_dir, layout_, at::kCPU);
    GgufWriter writer(options_.target, keys, Plans());
    for (const auto& [name, factors] : Factors()) writer.Write(name, factors);
    for (const UnitInfo& unit : layout_.units) {
      for (const ParamInfo& param : unit.params) {
        if (options_.on_tensor) options_.on_tensor();
        const Tensor weight = base.Read(param, 0, param.numel()).view(param.shape);
        for (const GgufPart& part : GgufParts(config_, param)) {
          writer.Write(part.name, Turned(param, PartOf(part, weight)));
        }
        base.Done(param);
      }
    }
    writer.Commit();
  }

 private:
  // What the frequencies of the rope are divided by, under llama.cpp's names.
  std::vector<std::pair<std::string, Tensor>> Factors() const {
    if (rope_.type == plan::RopeType::kLlama3) {
      return {{"rope_freqs.weight", RopeFactors(rope_, config_.head_dim)}};
    }
    if (config_.family == "gemma4_text") return {{"rope_freqs.weight", PartFactors()}};
    if (rope_.type != plan::RopeType::kLongRope) return {};
    return {{"rope_factors_long.weight", at::tensor(rope_.long_factors).to(at::kFloat)},
            {"rope_factors_short.weight", at::tensor(rope_.short_factors).to(at::kFloat)}};
  }

  // Of layers that see all tokens: the frequencies behind the rotated share become none.
  Tensor PartFactors() const {
    constexpr double kNoTurn = 1e30;
    const int64_t head = MainShape(config_).head_dim;
    const int64_t rotated = static_cast<int64_t>(static_cast<double>(head) * rope_.rotated) / 2;
    Tensor factors = at::ones({head / 2});
    factors.narrow(0, rotated, head / 2 - rotated).fill_(kNoTurn);
    return factors;
  }

  // Of gates with ups, which stand one below the other or in turn, what `part` is.
  Tensor PartOf(const GgufPart& part, const Tensor& weight) const {
    if (!part.is_half) return weight.view(part.shape);
    const auto dimension = static_cast<int64_t>(part.outputs);
    const int64_t size = part.shape[part.outputs];
    std::vector<int64_t> both = part.shape;
    both[part.outputs] *= 2;
    const Tensor stack = weight.view(both);
    if (config_.activation == plan::ActivationKind::kClampedSwiGlu) {
      return stack.slice(dimension, part.is_up ? 1 : 0, 2 * size, 2);
    }
    return stack.narrow(dimension, part.is_up ? size : 0, size);
  }

  Tensor Turned(const ParamInfo& param, const Tensor& weight) const {
    if (param.role == ParamRole::kNorm && config_.norm == plan::NormKind::kRmsOnePlus) {
      return weight.to(at::kFloat) + 1.0;
    }
    if (!family_.turned) return weight;
    if (IsOf(param.name, ".q_proj.")) return TurnRows(weight, config_.heads);
    if (IsOf(param.name, ".k_proj.")) return TurnRows(weight, config_.kv_heads);
    return weight;
  }

  std::vector<GgufWriter::TensorPlan> Plans() const {
    std::vector<GgufWriter::TensorPlan> plans;
    for (const auto& [name, factors] : Factors()) {
      plans.push_back({name, factors.sizes().vec(), GgmlType::kF32});
    }
    for (const UnitInfo& unit : layout_.units) {
      for (const ParamInfo& param : unit.params) {
        for (const GgufPart& part : GgufParts(config_, param)) {
          GgmlType type = param.shape.size() > 1 ? options_.type : GgmlType::kF32;
          if (type == GgmlType::kQ8_0 && !FitsQ8(part.shape)) type = GgmlType::kF32;
          if (part.name == "position_embd.weight") type = GgmlType::kF32;  // small, added to all
          if (param.role == ParamRole::kRouter) type = GgmlType::kF32;     // small, decides
          plans.push_back({part.name, part.shape, type});
        }
      }
    }
    return plans;
  }

  void AddGeneral(GgufKeys& keys) const {
    keys.Set("general.architecture", architecture_);
    keys.Set("general.type", "model");
    keys.Set("general.name", options_.name);
    keys.SetInt("general.file_type", FileType(options_.type));
    keys.SetInt("general.quantization_version", 2);
    if (options_.base_model.empty()) return;
    keys.SetInt("general.base_model.count", 1);
    keys.Set("general.base_model.0.name", options_.base_model);
    keys.Set("general.base_model.0.repo_url", "https://huggingface.co/" + options_.base_model);
  }

  void SetInt(GgufKeys& keys, std::string_view key, int64_t value) const {
    keys.SetInt(fmt::format("{}.{}", architecture_, key), static_cast<uint32_t>(value));
  }
  void SetFloat(GgufKeys& keys, std::string_view key, double value) const {
    keys.SetFloat(fmt::format("{}.{}", architecture_, key), static_cast<float>(value));
  }

  // One number where all layers have the same, else a number for each.
  template <typename Get>
  void SetByLayer(GgufKeys& keys, std::string_view key, const Get& get) const {
    std::vector<int32_t> values;
    for (int64_t i = 0; i < config_.layers; ++i) {
      values.push_back(static_cast<int32_t>(get(config_.Layer(i))));
    }
    if (std::ranges::count(values, values[0]) == config_.layers) {
      SetInt(keys, key, values[0]);
    } else {
      keys.SetInts(fmt::format("{}.{}", architecture_, key), values);
    }
  }

  void AddShapes(GgufKeys& keys) const {
    SetInt(keys, "block_count", config_.layers);
    SetInt(keys, "context_length", ContextLength());
    SetInt(keys, "embedding_length", config_.hidden);
    // Beside experts the layer's own, where it has one.
    SetByLayer(keys, "feed_forward_length", [&](const plan::LayerShape& layer) {
      if (layer.experts == 0) return layer.intermediate;
      return layer.shared > 0 ? layer.shared : config_.intermediate;
    });
    SetInt(keys, "vocab_size", config_.vocab);
    SetInt(keys, "attention.head_count", config_.heads);
    SetByLayer(keys, "attention.head_count_kv",
               [](const plan::LayerShape& layer) { return layer.kv_heads; });
    SetInt(keys, "attention.key_length", MainShape(config_).head_dim);
    SetInt(keys, "attention.value_length", MainShape(config_).head_dim);
    SetFloat(keys,
             config_.norm == plan::NormKind::kLayerNorm ? "attention.layer_norm_epsilon"
                                                        : "attention.layer_norm_rms_epsilon",
             config_.norm_epsilon);
    AddRope(keys);
    AddOwn(keys);
  }

  void AddRope(GgufKeys& keys) const {
    if (rope_.type == plan::RopeType::kNone) {
      if (config_.family != "gpt2") keys.SetBool(architecture_ + ".rope.scaling.finetuned", false);
      return;
    }
    const auto head = static_cast<double>(MainShape(config_).head_dim);
    const bool all = rope_.type == plan::RopeType::kProportional;
    SetInt(keys, "rope.dimension_count", std::llround(all ? head : head * rope_.rotated));
    SetFloat(keys, "rope.freq_base", rope_.theta);
    if (rope_.type == plan::RopeType::kLongRope) {
      SetInt(keys, "rope.scaling.original_context_length", rope_.original_max_positions);
      const double original = static_cast<double>(rope_.original_max_positions);
      const double usual =
          rope_.factor > 1 ? std::sqrt(1 + std::log(rope_.factor) / std::log(original)) : 1.0;
      SetFloat(keys, "rope.scaling.attn_factor", rope_.attention_factor.value_or(usual));
    }
    const bool yarn = rope_.type == plan::RopeType::kYarn;
    if (!yarn && rope_.type != plan::RopeType::kLinear) return;
    keys.Set(fmt::format("{}.rope.scaling.type", architecture_), yarn ? "yarn" : "linear");
    SetFloat(keys, "rope.scaling.factor", rope_.factor);
    if (!yarn) return;
    SetInt(keys, "rope.scaling.original_context_length", rope_.original_max_positions);
    if (config_.family == "ministral3") {
      SetFloat(keys, "rope.scaling.yarn_log_multiplier", 1.0);
      SetFloat(keys, "attention.temperature_scale", rope_.query_scaling);
      return;
    }
    // llama.cpp multiplies by what is usual itself.
    const double usual = 1 + 0.1 * std::log(std::max(1.0, rope_.factor));
    SetFloat(keys, "rope.scaling.attn_factor", rope_.attention_factor.value_or(usual) / usual);
  }

  // What only some families have.
  void AddOwn(GgufKeys& keys) const {
    if (config_.HasExperts()) {
      const plan::LayerShape layer = config_.Layer(0);
      SetInt(keys, "expert_count", layer.experts);
      SetInt(keys, "expert_used_count", layer.chosen);
      SetInt(keys, "expert_feed_forward_length", layer.intermediate);
    }
    if (config_.family == "phi3") SetInt(keys, "attention.sliding_window", 0);
    if (family_.windows) {
      SetInt(keys, "attention.sliding_window",
             std::ranges::max(config_.layer_options, {}, &plan::LayerOptions::window).window);
    }
    if (config_.family == "gemma4_text") AddGemma4(keys);
    if (architecture_ != "granite") return;
    SetFloat(keys, "attention.scale", config_.attention_scale);
    SetFloat(keys, "embedding_scale", config_.embedding_scale);
    SetFloat(keys, "residual_scale", config_.residual_scale);
    SetFloat(keys, "logit_scale", 1.0 / config_.logit_scale);
  }

  void AddGemma4(GgufKeys& keys) const {
    std::vector<bool> slides;
    int64_t sharing = 0;
    double theta = rope_.theta;
    for (int64_t i = 0; i < config_.layers; ++i) {
      const plan::LayerOptions& layer = config_.layer_options[i];
      slides.push_back(layer.window > 0);
      if (layer.window > 0) theta = config_.ropes[layer.rope].theta;
      if (config_.Layer(i).keys_of >= 0) ++sharing;
    }
    keys.SetBools(architecture_ + ".attention.sliding_window_pattern", slides);
    SetInt(keys, "attention.shared_kv_layers", sharing);
    SetInt(keys, "attention.key_length_swa", config_.head_dim);
    SetInt(keys, "attention.value_length_swa", config_.head_dim);
    SetInt(keys, "rope.dimension_count_swa", config_.head_dim);
    SetFloat(keys, "rope.freq_base_swa", theta);
    SetInt(keys, "embedding_length_per_layer_input", config_.layer_input);
    if (config_.logit_cap != 0.0) SetFloat(keys, "final_logit_softcapping", config_.logit_cap);
  }

  // llama.cpp has no window in most architectures: what is longer than one would differ.
  int64_t ContextLength() const {
    int64_t length = config_.max_positions > 0 ? config_.max_positions : 2048;
    for (const plan::LayerOptions& layer : config_.layer_options) {
      if (layer.window > 0 && !family_.windows) length = std::min(length, layer.window);
    }
    return length;
  }

  const GgufOptions& options_;
  const ModelConfig& config_;
  const ModelLayout layout_;
  const GgufFamily& family_;
  const std::string architecture_;
  const plan::RopeOptions& rope_;
};

// A text between quotes as a Modelfile has it.
std::string QuotedText(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace

void CheckGguf(const std::filesystem::path& model_dir, const ModelConfig& config) {
  CheckGgufFamily(config);
  GgufKeys ignored;
  AddTokenizer(model_dir, config.vocab, FindGgufFamily(config.family)->architecture, ignored);
}

void WriteGguf(const GgufOptions& options) {
  const at::NoGradGuard no_grad;
  const ModelConfig config = ReadConfig(options.model_dir);
  CheckGguf(options.model_dir, config);
  GgufModel(options, config).Write();
}

std::string ModelfileText(const std::filesystem::path& model_dir, const std::string& file) {
  const ChatTokenizer chat = ChatTokenizer::Open(model_dir);
  std::string text = fmt::format("FROM ./{}\n", file);
  for (const int32_t id : chat.stop_ids()) {
    const std::string stop = chat.tokenizer().Decode({&id, 1}, /*skip_special=*/false);
    if (!stop.empty()) text += fmt::format("PARAMETER stop {}\n", QuotedText(stop));
  }
  const TextFiles files(model_dir);
  for (const char* key : {"temperature", "top_p", "top_k"}) {
    const auto& value = Member(files.generation_config, key);
    if (value.is_number()) text += fmt::format("PARAMETER {} {}\n", key, value.dump());
  }
  return text;
}

}  // namespace sft::engine
