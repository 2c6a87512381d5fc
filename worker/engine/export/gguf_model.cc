#include "worker/engine/export/gguf_model.h"

#include <ATen/core/grad_mode.h>
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

// llama.cpp's architecture for a family; empty: none that is written here.
std::string_view ArchitectureOf(std::string_view family) {
  if (family == "llama" || family == "mistral") return "llama";
  if (family == "qwen2" || family == "qwen3") return family;
  return {};
}

[[noreturn]] void RefuseModel(const std::string& what) {
  throw UserError("the model cannot be written as GGUF: " + what, "bad_model",
                  "export a merged model and convert it with llama.cpp's convert_hf_to_gguf.py");
}

// "blk.3.attn_q.weight" of "model.layers.3.self_attn.q_proj.weight"; empty: it has no name there.
std::string GgufName(std::string_view name) {
  static const std::map<std::string_view, std::string_view> kWhole = {
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"lm_head.weight", "output.weight"}};
  static const std::map<std::string_view, std::string_view> kOfBlock = {
      {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"}, {"post_attention_layernorm", "ffn_norm"},
      {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"}};
  if (const auto whole = kWhole.find(name); whole != kWhole.end())
    return std::string(whole->second);
  constexpr std::string_view kBlock = "model.layers.";
  if (!name.starts_with(kBlock)) return "";
  name.remove_prefix(kBlock.size());
  const size_t dot = name.find('.'), last = name.rfind('.');
  if (dot == name.npos || last <= dot) return "";
  const auto module = kOfBlock.find(name.substr(dot + 1, last - dot - 1));
  if (module == kOfBlock.end()) return "";
  return fmt::format("blk.{}.{}{}", name.substr(0, dot), module->second, name.substr(last));
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

constexpr char kRopeFactors[] = "rope_freqs.weight";

class GgufModel {
 public:
  GgufModel(const GgufOptions& options, const ModelConfig& config)
      : options_(options),
        config_(config),
        layout_(MakeLayout(config)),
        architecture_(ArchitectureOf(config.family)) {}

  void Write() {
    GgufKeys keys;
    AddGeneral(keys);
    AddShapes(keys);
    AddTokenizer(options_.model_dir, config_.vocab, keys);
    const BaseWeights base(options_.model_dir, layout_, at::kCPU);
    GgufWriter writer(options_.target, keys, Plans());
    if (HasFactors()) writer.Write(kRopeFactors, RopeFactors(config_.ropes[0], config_.head_dim));
    for (const UnitInfo& unit : layout_.units) {
      for (const ParamInfo& param : unit.params) {
        if (options_.on_tensor) options_.on_tensor();
        const Tensor weight = base.Read(param, 0, param.numel()).view(param.shape);
        writer.Write(GgufName(param.name), Turned(param, weight));
        base.Done(param);
      }
    }
    writer.Commit();
  }

 private:
  bool HasFactors() const { return config_.ropes[0].type == plan::RopeType::kLlama3; }

  Tensor Turned(const ParamInfo& param, const Tensor& weight) const {
    if (architecture_ != "llama") return weight;
    if (IsOf(param.name, ".q_proj.")) return TurnRows(weight, config_.heads);
    if (IsOf(param.name, ".k_proj.")) return TurnRows(weight, config_.kv_heads);
    return weight;
  }

  std::vector<GgufWriter::TensorPlan> Plans() const {
    std::vector<GgufWriter::TensorPlan> plans;
    if (HasFactors()) plans.push_back({kRopeFactors, {config_.head_dim / 2}, GgmlType::kF32});
    for (const UnitInfo& unit : layout_.units) {
      for (const ParamInfo& param : unit.params) {
        GgmlType type = param.shape.size() > 1 ? options_.type : GgmlType::kF32;
        if (type == GgmlType::kQ8_0 && !FitsQ8(param.shape)) type = GgmlType::kF32;
        plans.push_back({GgufName(param.name), param.shape, type});
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

  void AddShapes(GgufKeys& keys) const {
    const auto set = [&](std::string_view key, int64_t value) {
      keys.SetInt(fmt::format("{}.{}", architecture_, key), static_cast<uint32_t>(value));
    };
    const auto set_float = [&](std::string_view key, double value) {
      keys.SetFloat(fmt::format("{}.{}", architecture_, key), static_cast<float>(value));
    };
    set("block_count", config_.layers);
    set("context_length", ContextLength());
    set("embedding_length", config_.hidden);
    set("feed_forward_length", config_.intermediate);
    set("vocab_size", config_.vocab);
    set("attention.head_count", config_.heads);
    set("attention.head_count_kv", config_.kv_heads);
    set("attention.key_length", config_.head_dim);
    set("attention.value_length", config_.head_dim);
    set_float("attention.layer_norm_rms_epsilon", config_.norm_epsilon);
    set("rope.dimension_count", config_.head_dim);
    const plan::RopeOptions& rope = config_.ropes[0];
    set_float("rope.freq_base", rope.theta);
    if (rope.type != plan::RopeType::kLinear) return;
    keys.Set(fmt::format("{}.rope.scaling.type", architecture_), "linear");
    set_float("rope.scaling.factor", rope.factor);
  }

  // llama.cpp has no window in these architectures: what is longer than one would differ.
  int64_t ContextLength() const {
    int64_t length = config_.max_positions > 0 ? config_.max_positions : 2048;
    for (const plan::LayerOptions& layer : config_.layer_options) {
      if (layer.window > 0) length = std::min(length, layer.window);
    }
    return length;
  }

  const GgufOptions& options_;
  const ModelConfig& config_;
  const ModelLayout layout_;
  const std::string architecture_;
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
  if (ArchitectureOf(config.family).empty()) {
    RefuseModel(fmt::format("family {} is not supported yet; llama, mistral, qwen2 and qwen3 are",
                            config.family));
  }
  if (!config.prefix.empty()) RefuseModel("it is a part of a multimodal model");
  if (config.ropes.size() != 1) RefuseModel("its layers have several ropes");
  const plan::RopeType rope = config.ropes[0].type;
  if (rope != plan::RopeType::kDefault && rope != plan::RopeType::kLinear &&
      rope != plan::RopeType::kLlama3) {
    RefuseModel("its rope is scaled in a way that is not supported yet; linear and llama3 are");
  }
  if (config.ropes[0].rotated != 1.0) RefuseModel("only a part of each head is rotated");
  for (const UnitInfo& unit : MakeLayout(config).units) {
    for (const ParamInfo& param : unit.params) {
      const bool known = !GgufName(param.name).empty() &&
                         !(config.family == "qwen3" && param.name.ends_with(".bias"));
      if (!known) RefuseModel(fmt::format("llama.cpp has no name for {}", param.name));
    }
  }
  GgufKeys ignored;
  AddTokenizer(model_dir, config.vocab, ignored);
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
