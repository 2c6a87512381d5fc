#include "worker/engine/export/gguf_family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <vector>

#include "worker/engine/base/error.h"
#include "worker/engine/model/families.h"

namespace sft::engine {
namespace {

constexpr GgufFamily kFamilies[] = {
    {.family = "llama", .architecture = "llama", .turned = true, .biases = true},
    {.family = "mistral", .architecture = "llama", .turned = true, .biases = true},
    {.family = "qwen2", .architecture = "qwen2", .biases = true},
    {.family = "qwen3", .architecture = "qwen3"},
    {.family = "qwen3_moe", .architecture = "qwen3moe"},
    {.family = "mixtral", .architecture = "llama", .turned = true},
    {.family = "gpt_oss",
     .architecture = "gpt-oss",
     .biases = true,
     .norms_behind = true,
     .windows = true},
    {.family = "granite", .architecture = "granite", .turned = true, .biases = true},
    {.family = "smollm3", .architecture = "smollm3", .turned = true},
    {.family = "olmo2", .architecture = "olmo2", .norms_behind = true},
    {.family = "olmo3", .architecture = "olmo2", .norms_behind = true, .windows = true},
    {.family = "phi3", .architecture = "phi3"},
    {.family = "gemma3_text", .architecture = "gemma3", .norms_behind = true, .windows = true},
    {.family = "gpt2", .architecture = "gpt2", .biases = true},
};

// What llama.cpp has fixed in its code.
constexpr int64_t kGemmaInterval = 6, kSmolLmInterval = 4, kOlmoInterval = 4, kGptOssInterval = 2;
constexpr double kGemmaSlidingTheta = 10'000.0;
constexpr int64_t kGemma27Layers = 62;
constexpr std::string_view kGateStack = "ffn_gate_exps", kUpStack = "ffn_up_exps";

// Families that only builds of llama.cpp know that are younger than the one with which files are
// compared (tests/parity/gguf.py).
constexpr std::string_view kYounger[] = {"ministral3", "gemma4_text"};

std::string SupportedFamilies() {
  std::vector<std::string_view> names;
  for (const GgufFamily& family : kFamilies) names.push_back(family.family);
  return fmt::format("{}", fmt::join(names, ", "));
}

// "model.layers.0..." of the decoder of a multimodal model.
std::string WithoutPrefix(std::string_view prefix, std::string_view name) {
  constexpr std::string_view kModel = "model.";
  if (prefix.empty() || !name.starts_with(prefix)) return std::string(name);
  name.remove_prefix(prefix.size());
  return prefix.starts_with(kModel) ? std::string(kModel).append(name) : std::string(name);
}

// The parts of "model.layers.3.self_attn.q_proj.weight" that a name of llama.cpp is made of.
struct BlockPart {
  std::string_view layer, module, suffix;
};

bool SplitBlock(std::string_view name, BlockPart& part) {
  for (const std::string_view block : {"model.layers.", "transformer.h."}) {
    if (!name.starts_with(block)) continue;
    name.remove_prefix(block.size());
    const size_t dot = name.find('.'), last = name.rfind('.');
    if (dot == name.npos || last <= dot) return false;
    part = {name.substr(0, dot), name.substr(dot + 1, last - dot - 1), name.substr(last)};
    return true;
  }
  return false;
}

// A window of one size in all layers but each `interval`th.
void CheckWindows(const ModelConfig& config, int64_t interval) {
  for (int64_t i = 0; i < config.layers; ++i) {
    const plan::LayerOptions& layer = config.layer_options[i];
    const bool slides = (i + 1) % interval != 0;
    if (slides != (layer.window > 0)) {
      RefuseGguf(
          fmt::format("llama.cpp has a window in all layers but each {}th, and layer {} of "
                      "this model {} one",
                      interval, i, slides ? "has not" : "has"));
    }
    if (slides && layer.window != config.layer_options[0].window) {
      RefuseGguf("its windows are of several sizes");
    }
  }
}

void CheckOlmo3(const ModelConfig& config) {
  CheckWindows(config, kOlmoInterval);
  const plan::RopeOptions& main = MainRope(config);
  for (const plan::LayerOptions& layer : config.layer_options) {
    const plan::RopeOptions& rope = config.ropes[layer.rope];
    if (layer.window > 0 && (rope.type != plan::RopeType::kDefault || rope.theta != main.theta)) {
      RefuseGguf(
          "the rope of layers with a window is scaled, or has another base than that of the "
          "others");
    }
  }
}

// What the file has no keys for, or llama.cpp gives no choice in. It rounds the borders of yarn's
// ramp, gpt_oss's too, which has them unrounded (docs/results.md).
void CheckYarn(const ModelConfig& config, const plan::RopeOptions& rope) {
  const bool rounds = rope.truncate || config.family == "gpt_oss";
  if (rope.beta_fast != 32.0 || rope.beta_slow != 1.0 || !rounds || rope.mscale != 0.0 ||
      rope.mscale_all_dim != 0.0 || rope.query_scaling != 0.0) {
    RefuseGguf("its yarn scaling has other settings than factor and attention_factor");
  }
}

void CheckGemma3(const ModelConfig& config) {
  CheckWindows(config, kGemmaInterval);
  for (int64_t i = 0; i < config.layers; ++i) {
    const plan::LayerOptions& layer = config.layer_options[i];
    const bool slides = layer.window > 0;
    const plan::RopeOptions& rope = config.ropes[layer.rope];
    if (slides && (rope.theta != kGemmaSlidingTheta || rope.type != plan::RopeType::kDefault)) {
      RefuseGguf("the rope of layers with a window has another base than 10000, or is scaled");
    }
  }
  const double size = config.layers == kGemma27Layers
                          ? static_cast<double>(config.hidden) / static_cast<double>(config.heads)
                          : static_cast<double>(config.head_dim);
  if (std::fabs(config.attention_scale * std::sqrt(size) - 1.0) > 1e-6) {
    RefuseGguf(fmt::format("its query_pre_attn_scalar is not the {} that llama.cpp has", size));
  }
}

void CheckSmolLm3(const ModelConfig& config) {
  for (int64_t i = 0; i < config.layers; ++i) {
    const bool rotates = config.ropes[config.layer_options[i].rope].type != plan::RopeType::kNone;
    if (rotates != ((i + 1) % kSmolLmInterval != 0)) {
      RefuseGguf(
          fmt::format("in llama.cpp each {}th layer sees no positions, and layer {} of this "
                      "model {} them",
                      kSmolLmInterval, i, rotates ? "sees" : "does not see"));
    }
  }
}

// In llama.cpp every layer of such a model has experts, whose weights add up to 1.
void CheckGgufExperts(const ModelConfig& config) {
  for (int64_t i = 0; i < config.layers; ++i) {
    if (config.Layer(i).experts > 0) continue;
    RefuseGguf(
        fmt::format("in llama.cpp every layer of this family has experts, and layer {} of "
                    "this model has none",
                    i));
  }
  if (config.router.weights != plan::RouterWeights::kSoftmaxOfTopK) {
    RefuseGguf("the weights of a token's experts do not add up to 1 (norm_topk_prob)");
  }
}

void CheckGptOss(const ModelConfig& config) {
  CheckWindows(config, kGptOssInterval);
  if (!config.qkv_bias || !config.output_bias) {
    RefuseGguf("llama.cpp wants biases in gpt_oss's attention, and it has none (attention_bias)");
  }
  if (config.tied_head) {
    RefuseGguf("llama.cpp wants a head of its own in gpt_oss, and its head is the embedding");
  }
}

// What each architecture has in llama.cpp's code, whatever the file says.
void CheckFixed(const ModelConfig& config) {
  const bool gelu = config.family == "gemma3_text" || config.family == "gpt2";
  const auto wanted = config.family == "gpt_oss" ? plan::ActivationKind::kClampedSwiGlu
                      : gelu                     ? plan::ActivationKind::kGeluTanh
                                                 : plan::ActivationKind::kSilu;
  if (config.activation != wanted) {
    RefuseGguf("its activation is not the one that llama.cpp has for this family");
  }
  const double scale = config.attention_scale * std::sqrt(static_cast<double>(config.head_dim));
  const bool reads_scale = config.family == "granite" || config.family == "gemma3_text";
  if (!reads_scale && std::fabs(scale - 1.0) > 1e-6) {
    RefuseGguf("its attention is not scaled by the root of the heads' size");
  }
  if (config.logit_cap != 0.0) RefuseGguf("its logits are capped");
}

void CheckRope(const ModelConfig& config, const GgufFamily& family) {
  const bool olmo = family.family == "olmo3", gpt_oss = family.family == "gpt_oss";
  const bool several = family.family == "gemma3_text" || family.family == "smollm3" || olmo;
  if (config.ropes.size() != 1 && !several) RefuseGguf("its layers have several ropes");
  const plan::RopeOptions& rope = MainRope(config);
  const bool phi = family.family == "phi3";
  const bool known = rope.type == plan::RopeType::kDefault ||
                     rope.type == plan::RopeType::kLinear ||
                     (rope.type == plan::RopeType::kNone && family.family == "gpt2") ||
                     (rope.type == plan::RopeType::kLongRope && phi) ||
                     (rope.type == plan::RopeType::kYarn && (olmo || gpt_oss)) ||
                     (rope.type == plan::RopeType::kLlama3 &&
                      (family.architecture == "llama" || family.architecture == "granite"));
  if (!known) {
    RefuseGguf(
        "its rope is scaled in a way that is not supported yet; linear is, llama3 in Llama "
        "and Granite, longrope in Phi-3, yarn in OLMo 3 and gpt-oss");
  }
  if (rope.type == plan::RopeType::kYarn) CheckYarn(config, rope);
  if (rope.rotated != 1.0 && !phi) RefuseGguf("only a part of each head is rotated");
}

}  // namespace

void RefuseGguf(const std::string& what) {
  throw UserError("the model cannot be written as GGUF: " + what, "bad_model",
                  "export a merged model and convert it with llama.cpp's convert_hf_to_gguf.py");
}

const GgufFamily* FindGgufFamily(std::string_view family) {
  const auto* const found =
      std::find_if(std::begin(kFamilies), std::end(kFamilies),
                   [&](const GgufFamily& each) { return each.family == family; });
  return found == std::end(kFamilies) ? nullptr : found;
}

const plan::RopeOptions& MainRope(const ModelConfig& config) {
  for (const plan::LayerOptions& layer : config.layer_options) {
    const plan::RopeOptions& rope = config.ropes[layer.rope];
    if (layer.window == 0 && (rope.type != plan::RopeType::kNone || config.ropes.size() == 1)) {
      return rope;
    }
  }
  return config.ropes[0];
}

std::string GgufName(const ModelConfig& config, std::string_view full) {
  static const std::map<std::string_view, std::string_view> kWhole = {
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"lm_head.weight", "output.weight"},
      {"transformer.wte.weight", "token_embd.weight"},
      {"transformer.wpe.weight", "position_embd.weight"},
      {"transformer.ln_f.weight", "output_norm.weight"},
      {"transformer.ln_f.bias", "output_norm.bias"}};
  static const std::map<std::string_view, std::string_view> kOfBlock = {
      {"input_layernorm", "attn_norm"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.qkv_proj", "attn_qkv"},
      {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"post_attention_layernorm", "ffn_norm"},
      {"pre_feedforward_layernorm", "ffn_norm"},
      {"post_feedforward_layernorm", "post_ffw_norm"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.gate_up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"mlp.gate", "ffn_gate_inp"},
      {"mlp.router", "ffn_gate_inp"},
      {"block_sparse_moe.gate", "ffn_gate_inp"},
      {"mlp.experts.gate_up_proj", kGateStack},
      {"mlp.experts.down_proj", "ffn_down_exps"},
      {"ln_1", "attn_norm"},
      {"attn.c_attn", "attn_qkv"},
      {"attn.c_proj", "attn_output"},
      {"ln_2", "ffn_norm"},
      {"mlp.c_fc", "ffn_up"},
      {"mlp.c_proj", "ffn_down"}};
  const GgufFamily* const family = FindGgufFamily(config.family);
  if (family == nullptr) return "";
  const std::string name = WithoutPrefix(config.prefix, full);
  if (const auto whole = kWhole.find(name); whole != kWhole.end())
    return std::string(whole->second);
  BlockPart part;
  if (!SplitBlock(name, part)) return "";
  if (part.suffix == ".bias" && !family->biases) return "";
  if (part.suffix == ".sinks") return fmt::format("blk.{}.attn_sinks.weight", part.layer);
  std::string_view module;
  if (family->norms_behind && part.module == "post_attention_layernorm") {
    module = "post_attention_norm";
  } else if (const auto found = kOfBlock.find(part.module); found != kOfBlock.end()) {
    module = found->second;
  } else {
    return "";
  }
  return fmt::format("blk.{}.{}{}", part.layer, module, part.suffix);
}

std::vector<GgufPart> GgufParts(const ModelConfig& config, const ParamInfo& param) {
  const std::string name = GgufName(config, param.name);
  if (name.empty()) return {};
  if (param.experts == 0) return {{.name = name, .shape = param.shape}};
  std::vector<int64_t> shape = param.shape;
  shape[0] /= param.experts;
  shape.insert(shape.begin(), param.experts);
  const size_t gates = name.find(kGateStack);
  if (gates == std::string::npos) return {{.name = name, .shape = shape}};
  shape[1] /= 2;
  std::string ups = name;
  ups.replace(gates, kGateStack.size(), kUpStack);
  return {{.name = name, .shape = shape, .is_half = true},
          {.name = ups, .shape = shape, .is_half = true, .is_up = true}};
}

void CheckGgufFamily(const ModelConfig& config) {
  const GgufFamily* const family = FindGgufFamily(config.family);
  if (family == nullptr) {
    const bool younger =
        std::find(std::begin(kYounger), std::end(kYounger), config.family) != std::end(kYounger);
    RefuseGguf(fmt::format(
        "family {} is not supported yet{}; {} are", config.family,
        younger ? ", since the build of llama.cpp that files are compared with does not know it"
                : "",
        SupportedFamilies()));
  }
  // Others could be written, but are not known to be read.
  if (!config.prefix.empty() && config.family != "gemma3_text" && config.family != "mistral") {
    RefuseGguf("it is a part of a multimodal model");
  }
  if (family->architecture == "olmo2" && config.tied_head) {
    RefuseGguf("llama.cpp wants a head of its own in OLMo, and its head is the embedding");
  }
  CheckFixed(config);
  CheckRope(config, *family);
  if (config.family == "gemma3_text") CheckGemma3(config);
  if (config.family == "olmo3") CheckOlmo3(config);
  if (config.family == "smollm3") CheckSmolLm3(config);
  if (config.family == "gpt_oss") CheckGptOss(config);
  if (config.HasExperts()) CheckGgufExperts(config);
  for (const UnitInfo& unit : MakeLayout(config).units) {
    for (const ParamInfo& param : unit.params) {
      if (GgufParts(config, param).empty()) {
        RefuseGguf(fmt::format("llama.cpp has no name for {}", param.name));
      }
    }
  }
}

}  // namespace sft::engine
