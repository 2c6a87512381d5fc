#include "worker/engine/export/gguf_family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

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
    {.family = "granitemoehybrid",
     .architecture = "granite",
     .turned = true,
     .biases = true,
     .halves = true},
    {.family = "ministral3", .architecture = "mistral3", .turned = true},
    {.family = "smollm3", .architecture = "smollm3", .turned = true},
    {.family = "olmo2", .architecture = "olmo2", .norms_behind = true},
    {.family = "olmo3", .architecture = "olmo2", .norms_behind = true, .windows = true},
    {.family = "phi3", .architecture = "phi3"},
    {.family = "gemma3_text", .architecture = "gemma3", .norms_behind = true, .windows = true},
    {.family = "gemma4_text", .architecture = "gemma4", .norms_behind = true, .windows = true},
    {.family = "gpt2", .architecture = "gpt2", .biases = true},
};

constexpr std::string_view kGateStack = "ffn_gate_exps", kUpStack = "ffn_up_exps";
constexpr std::string_view kGates = "ffn_gate", kUps = "ffn_up";

// "model.layers.0..." of the decoder of a multimodal model.
std::string WithoutPrefix(std::string_view prefix, std::string_view name) {
  constexpr std::string_view kModel = "model.";
  if (prefix.empty() || !name.starts_with(prefix)) return std::string(name);
  name.remove_prefix(prefix.size());
  return prefix.starts_with(kModel) ? std::string(kModel).append(name) : std::string(name);
}

// "3" and "self_attn.q_proj.weight" of "model.layers.3.self_attn.q_proj.weight".
bool SplitBlock(std::string_view name, std::string_view& layer, std::string_view& rest) {
  for (const std::string_view block : {"model.layers.", "transformer.h."}) {
    if (!name.starts_with(block)) continue;
    name.remove_prefix(block.size());
    const size_t dot = name.find('.');
    if (dot == name.npos) return false;
    layer = name.substr(0, dot);
    rest = name.substr(dot + 1);
    return true;
  }
  return false;
}

}  // namespace

const GgufFamily* FindGgufFamily(std::string_view family) {
  const auto* const found =
      std::find_if(std::begin(kFamilies), std::end(kFamilies),
                   [&](const GgufFamily& each) { return each.family == family; });
  return found == std::end(kFamilies) ? nullptr : found;
}

std::string GgufFamilyNames() {
  std::vector<std::string_view> names;
  for (const GgufFamily& family : kFamilies) names.push_back(family.family);
  return fmt::format("{}", fmt::join(names, ", "));
}

plan::LayerShape MainShape(const ModelConfig& config) {
  for (int64_t i = 0; i < config.layers; ++i) {
    if (config.Window(i) == 0) return config.Layer(i);
  }
  return config.Layer(0);
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
      {"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
      {"model.per_layer_model_projection.weight", "per_layer_model_proj.weight"},
      {"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
      {"transformer.wte.weight", "token_embd.weight"},
      {"transformer.wpe.weight", "position_embd.weight"},
      {"transformer.ln_f.weight", "output_norm.weight"},
      {"transformer.ln_f.bias", "output_norm.bias"}};
  static const std::map<std::string_view, std::string_view> kWholeOfBlock = {
      {"self_attn.sinks", "attn_sinks.weight"},
      {"router.scale", "ffn_gate_inp.scale"},
      {"router.per_expert_scale", "ffn_down_exps.scale"},
      {"layer_scalar", "layer_output_scale.weight"}};
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
      {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
      {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
      {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
      {"per_layer_input_gate", "inp_gate"},
      {"per_layer_projection", "proj"},
      {"post_per_layer_input_norm", "post_norm"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.gate_up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"shared_mlp.input_linear", kGates},
      {"shared_mlp.output_linear", "ffn_down"},
      {"mlp.gate", "ffn_gate_inp"},
      {"mlp.router", "ffn_gate_inp"},
      {"block_sparse_moe.gate", "ffn_gate_inp"},
      {"router.proj", "ffn_gate_inp"},
      {"mlp.experts.gate_up_proj", kGateStack},
      {"mlp.experts.down_proj", "ffn_down_exps"},
      {"experts.gate_up_proj", kGateStack},
      {"experts.down_proj", "ffn_down_exps"},
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
  std::string_view layer, rest;
  if (!SplitBlock(name, layer, rest)) return "";
  if (const auto whole = kWholeOfBlock.find(rest); whole != kWholeOfBlock.end()) {
    return fmt::format("blk.{}.{}", layer, whole->second);
  }
  const size_t dot = rest.rfind('.');
  if (dot == rest.npos) return "";
  std::string_view module = rest.substr(0, dot);
  const std::string_view suffix = rest.substr(dot);
  if (suffix == ".bias" && !family->biases) return "";
  if (family->norms_behind && module == "post_attention_layernorm") {
    module = "post_attention_norm";
  } else if (const auto found = kOfBlock.find(module); found != kOfBlock.end()) {
    module = found->second;
  } else {
    return "";
  }
  return fmt::format("blk.{}.{}{}", layer, module, suffix);
}

std::vector<GgufPart> GgufParts(const ModelConfig& config, const ParamInfo& param) {
  const std::string name = GgufName(config, param.name);
  if (name.empty()) return {};
  std::vector<int64_t> shape = param.shape;
  const bool stack = param.experts > 0;
  if (stack) {
    shape[0] /= param.experts;
    shape.insert(shape.begin(), param.experts);
  }
  const std::string_view gates = stack ? kGateStack : kGates;
  const size_t at = name.find(gates);
  const bool halved = stack || FindGgufFamily(config.family)->halves;
  if (!halved || at == std::string::npos) return {{.name = name, .shape = shape}};
  const size_t outputs = stack ? 1 : 0;
  shape[outputs] /= 2;
  std::string ups = name;
  ups.replace(at, gates.size(), stack ? kUpStack : kUps);
  return {{.name = name, .shape = shape, .is_half = true, .outputs = outputs},
          {.name = ups, .shape = shape, .is_half = true, .is_up = true, .outputs = outputs}};
}

}  // namespace sft::engine
