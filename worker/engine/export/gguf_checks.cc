#include "worker/engine/export/gguf_checks.h"

#include <fmt/format.h>

#include <cmath>

#include "worker/engine/base/error.h"
#include "worker/engine/export/gguf_family.h"
#include "worker/engine/model/families.h"

namespace sft::engine {
namespace {

// What llama.cpp has fixed in its code.
constexpr int64_t kGemmaInterval = 6, kSmolLmInterval = 4, kOlmoInterval = 4, kGptOssInterval = 2;
constexpr double kGemmaSlidingTheta = 10'000.0;
constexpr int64_t kGemma27Layers = 62;

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
  if (rope.beta_fast != 32.0 || rope.beta_slow != 1.0 || !rounds) {
    RefuseGguf("its yarn scaling has other settings than factor and attention_factor");
  }
  if (config.family == "ministral3") {
    // As released: rotated heads are not scaled.
    if (rope.mscale == 0.0 || rope.mscale != rope.mscale_all_dim || rope.attention_factor) {
      RefuseGguf("its mscale and mscale_all_dim are not the same number");
    }
  } else if (rope.mscale != 0.0 || rope.mscale_all_dim != 0.0 || rope.query_scaling != 0.0) {
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

// Layers without keys attend to those of the last layer of their type before all of them, which
// llama.cpp takes for one of the last two.
void CheckShared(const ModelConfig& config) {
  int64_t first = config.layers;
  while (first > 0 && config.Layer(first - 1).keys_of >= 0) --first;
  for (int64_t i = first; i < config.layers; ++i) {
    const int64_t wanted = first - (config.Window(i) > 0 ? 2 : 1);
    if (config.Layer(i).keys_of == wanted) continue;
    RefuseGguf(fmt::format("layer {} uses the keys of layer {}, and in llama.cpp those of layer {}",
                           i, config.Layer(i).keys_of, wanted));
  }
}

// Sizes that llama.cpp reads once for layers with a window and once for the others.
void CheckGemma4(const ModelConfig& config) {
  const plan::RopeOptions& main = MainRope(config);
  const plan::LayerShape full = MainShape(config);
  int64_t window = 0;
  for (int64_t i = 0; i < config.layers; ++i) {
    const plan::LayerOptions& layer = config.layer_options[i];
    const plan::RopeOptions& rope = config.ropes[layer.rope];
    const bool slides = layer.window > 0;
    if (config.Layer(i).head_dim != (slides ? config.head_dim : full.head_dim)) {
      RefuseGguf(fmt::format("the heads of layer {} have a size of their own", i));
    }
    if (slides && window > 0 && layer.window != window) {
      RefuseGguf("its windows are of several sizes");
    }
    if (slides) window = layer.window;
    const bool plain = rope.type == plan::RopeType::kDefault && rope.rotated == 1.0;
    const bool partial = rope.type == plan::RopeType::kProportional && rope.factor == 1.0;
    if (!plain && (slides || !partial)) {
      RefuseGguf(fmt::format("the rope of layer {} is scaled", i));
    }
  }
  if (window == 0) RefuseGguf("none of its layers has a window, and llama.cpp wants one");
  if (main.type == plan::RopeType::kNone) RefuseGguf("it sees no positions");
  CheckShared(config);
  if (config.layer_input > 0 && config.layer_input_vocab != config.vocab) {
    RefuseGguf(
        fmt::format("its layers have inputs of their own for {} tokens, and its vocabulary has {}",
                    config.layer_input_vocab, config.vocab));
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
  const bool gemma4 = config.family == "gemma4_text";
  const bool gelu = config.family == "gemma3_text" || gemma4 || config.family == "gpt2";
  const auto wanted = config.family == "gpt_oss" ? plan::ActivationKind::kClampedSwiGlu
                      : gelu                     ? plan::ActivationKind::kGeluTanh
                                                 : plan::ActivationKind::kSilu;
  if (config.activation != wanted) {
    RefuseGguf("its activation is not the one that llama.cpp has for this family");
  }
  const double scale = config.attention_scale * std::sqrt(static_cast<double>(config.head_dim));
  const bool reads_scale = config.family.starts_with("granite") || config.family == "gemma3_text" ||
                           gemma4;  // which has none
  if (!reads_scale && std::fabs(scale - 1.0) > 1e-6) {
    RefuseGguf("its attention is not scaled by the root of the heads' size");
  }
  if (config.logit_cap != 0.0 && !gemma4) RefuseGguf("its logits are capped");
}

void CheckRope(const ModelConfig& config, const GgufFamily& family) {
  const bool olmo = family.family == "olmo3";
  const bool yarn = olmo || family.family == "gpt_oss" || family.family == "ministral3";
  const bool several = family.family == "gemma3_text" || family.family == "smollm3" || olmo;
  if (config.ropes.size() != 1 && !several) RefuseGguf("its layers have several ropes");
  const plan::RopeOptions& rope = MainRope(config);
  const bool phi = family.family == "phi3";
  const bool known = rope.type == plan::RopeType::kDefault ||
                     rope.type == plan::RopeType::kLinear ||
                     (rope.type == plan::RopeType::kNone &&
                      (family.family == "gpt2" || family.family == "granitemoehybrid")) ||
                     (rope.type == plan::RopeType::kLongRope && phi) ||
                     (rope.type == plan::RopeType::kYarn && yarn) ||
                     (rope.type == plan::RopeType::kLlama3 &&
                      (family.architecture == "llama" || family.architecture == "granite"));
  if (!known) {
    RefuseGguf(
        "its rope is scaled in a way that is not supported yet; linear is, llama3 in Llama "
        "and Granite, longrope in Phi-3, yarn in OLMo 3, gpt-oss and Ministral 3");
  }
  if (rope.type == plan::RopeType::kYarn) {
    CheckYarn(config, rope);
  } else if (family.family == "ministral3") {
    RefuseGguf("its rope is not scaled as Ministral 3's (yarn)");
  }
  if (rope.rotated != 1.0 && !phi) RefuseGguf("only a part of each head is rotated");
}

}  // namespace

void RefuseGguf(const std::string& what) {
  throw UserError("the model cannot be written as GGUF: " + what, "bad_model",
                  "export a merged model and convert it with llama.cpp's convert_hf_to_gguf.py");
}

void CheckGgufFamily(const ModelConfig& config) {
  const GgufFamily* const family = FindGgufFamily(config.family);
  if (family == nullptr) {
    RefuseGguf(
        fmt::format("family {} is not supported yet; {} are", config.family, GgufFamilyNames()));
  }
  // Others could be written, but are not known to be read.
  const bool gemma = config.family == "gemma3_text" || config.family == "gemma4_text";
  if (!config.prefix.empty() && !gemma && config.family != "mistral" &&
      config.family != "ministral3") {
    RefuseGguf("it is a part of a multimodal model");
  }
  if (family->architecture == "olmo2" && config.tied_head) {
    RefuseGguf("llama.cpp wants a head of its own in OLMo, and its head is the embedding");
  }
  CheckFixed(config);
  if (config.family == "gemma4_text") {
    CheckGemma4(config);
  } else {
    CheckRope(config, *family);
  }
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
