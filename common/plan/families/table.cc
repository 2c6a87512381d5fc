#include <fmt/format.h>

#include <array>
#include <limits>

#include "common/base/edit_distance.h"
#include "common/plan/families/family.h"

namespace sft::plan {

namespace {

constexpr std::array kFamilies = {
    &kLlama,  &kMistral, &kMinistral, &kQwen2,      &kQwen3,     &kGranite, &kSmolLm3,  &kGemma3,
    &kGemma4, &kOlmo2,   &kOlmo3,     &kMinistral3, &kPhi3,      &kGpt2,    &kQwen3Moe, &kMixtral,
    &kGptOss, &kGlm4Moe, &kQwen35,    &kQwen35Moe,  &kQwen3Next, &kGranite4};

constexpr std::array kWrappers = {
    Wrapper{.name = "gemma3", .text_family = "gemma3_text", .prefix = "language_model."},
    Wrapper{.name = "gemma4", .text_family = "gemma4_text", .prefix = "model.language_model."},
    Wrapper{.name = "qwen3_5", .text_family = "qwen3_5_text", .prefix = "model.language_model."},
    Wrapper{.name = "qwen3_5_moe",
            .text_family = "qwen3_5_moe_text",
            .prefix = "model.language_model."},
    Wrapper{.name = "mistral3", .text_family = "mistral", .prefix = "language_model."},
};

// Types that people have and that are not read, beside the family they are nearest to.
struct Unread {
  std::string_view name;
  std::string_view nearest;
  std::string_view difference;
};

constexpr std::string_view kExperts = "its feed-forward layers are mixtures of experts";
constexpr std::string_view kLinearAttention = "most of its layers are linear attention";

constexpr std::string_view kOneNorm = "attention and feed-forward layer read one norm";
constexpr std::string_view kEncoder = "it is an encoder, whose tokens see those after them";

constexpr std::array kUnread = {
    Unread{"bert", "llama", kEncoder},
    Unread{"bloom", "gpt2", "scores fall with distance (ALiBi) in place of positions"},
    Unread{"cohere", "llama", "LayerNorm, attention and feed-forward layer read one norm"},
    Unread{"deepseek_v2", "llama", "latent attention, and mixtures of experts"},
    Unread{"deepseek_v3", "llama", "latent attention, and mixtures of experts"},
    Unread{"falcon", "llama", kOneNorm},
    Unread{"gemma", "gemma3_text", "no norms of queries and keys, none behind the sub-layers"},
    Unread{"gemma2", "gemma3_text", "attention scores and logits are capped by tanh"},
    Unread{"glm4", "llama", "rope turns neighbours, and norms stand behind the sub-layers too"},
    Unread{"gpt_neox", "llama", "LayerNorm, attention and feed-forward layer read one input"},
    Unread{"llama4", "llama", kExperts},
    Unread{"mpt", "gpt2", "scores fall with distance (ALiBi) in place of positions"},
    Unread{"olmo", "olmo2", "LayerNorm without weights before the sub-layers"},
    Unread{"olmoe", "qwen3_moe", "queries and keys are normed over all heads together"},
    Unread{"opt", "gpt2", "ReLU, and positions that begin at 2"},
    Unread{"phi", "llama", kOneNorm},
    Unread{"phimoe", "phi3", kExperts},
    Unread{"qwen2_moe", "qwen3_moe", "an expert that all tokens go to"},
    Unread{"stablelm", "llama", "LayerNorm, and a part of each head is rotated"},
    Unread{"starcoder2", "llama", "LayerNorm, and a feed-forward layer without gate"},
};

// Keys of a config.json that tell what a model of an unknown type has.
struct Sign {
  const char* key;
  std::string_view difference;
};

constexpr std::array kSigns = {
    Sign{"kv_lora_rank", "latent attention"},
    Sign{"num_local_experts", kExperts},
    Sign{"num_experts", kExperts},
    Sign{"n_routed_experts", kExperts},
    Sign{"linear_num_value_heads", kLinearAttention},
    Sign{"state_size", "its layers are state-space models"},
    Sign{"mamba_d_state", "some of its layers are state-space models"},
    Sign{"attn_logit_softcapping", "attention scores are capped by tanh"},
    Sign{"alibi", "scores fall with distance (ALiBi) in place of positions"},
    Sign{"use_parallel_residual", kOneNorm},
    Sign{"vision_config", "it is multimodal"},
    Sign{"layer_norm_eps", "LayerNorm"},
};

// What differs from the nearest family, where the type's name tells nothing.
std::string ReasonByKeys(const ConfigReader& config) {
  const bool like_gpt2 = config.Has("n_embd");
  if (!like_gpt2 && !config.Has("hidden_size") && !config.Has("text_config")) return {};
  const std::string nearest =
      fmt::format("the nearest by its keys is {}", like_gpt2 ? "gpt2" : "llama");
  for (const Sign& sign : kSigns) {
    if (config.Has(sign.key)) return fmt::format("{}: {}", nearest, sign.difference);
  }
  return nearest + ", but what its layers compute is not known";
}

}  // namespace

const Family* FindFamily(std::string_view name) {
  for (const Family* family : kFamilies) {
    if (family->name == name) return family;
  }
  return nullptr;
}

const Wrapper* FindWrapper(std::string_view name) {
  for (const Wrapper& wrapper : kWrappers) {
    if (wrapper.name == name) return &wrapper;
  }
  return nullptr;
}

std::string FamilyNames() {
  std::string names;
  const auto add = [&](std::string_view name) {
    names += (names.empty() ? "" : ", ") + std::string(name);
  };
  for (const Family* family : kFamilies) add(family->name);
  for (const Wrapper& wrapper : kWrappers) add(wrapper.name);
  return names;
}

std::string ReasonAgainst(std::string_view name, const ConfigReader& config) {
  for (const Unread& unread : kUnread) {
    if (unread.name == name) {
      return fmt::format("the nearest is {}: {}", unread.nearest, unread.difference);
    }
  }
  std::string_view nearest;
  size_t distance = std::numeric_limits<size_t>::max();
  const auto compare = [&](std::string_view family) {
    if (const size_t to = EditDistance(name, family); to < distance) {
      distance = to;
      nearest = family;
    }
  };
  for (const Family* family : kFamilies) compare(family->name);
  for (const Wrapper& wrapper : kWrappers) compare(wrapper.name);
  if (distance > SuggestionLimit(name)) return ReasonByKeys(config);
  return fmt::format("the nearest name is {}", nearest);
}

}  // namespace sft::plan
