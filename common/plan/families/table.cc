#include <fmt/format.h>

#include <array>
#include <limits>

#include "common/base/edit_distance.h"
#include "common/plan/families/family.h"

namespace sft::plan {

namespace {

constexpr std::array kFamilies = {&kLlama,      &kMistral, &kQwen2,  &kQwen3, &kGranite,
                                  &kSmolLm3,    &kGemma3,  &kGemma4, &kOlmo2, &kOlmo3,
                                  &kMinistral3, &kPhi3,    &kGpt2};

constexpr std::array kWrappers = {
    Wrapper{.name = "gemma3", .text_family = "gemma3_text", .prefix = "language_model."},
    Wrapper{.name = "gemma4", .text_family = "gemma4_text", .prefix = "model.language_model."},
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

constexpr std::array kUnread = {
    Unread{"deepseek_v3", "llama", "latent attention, and mixtures of experts"},
    Unread{"falcon", "llama", "attention and feed-forward layer read one norm"},
    Unread{"gemma", "gemma3_text", "no norms of queries and keys, none behind the sub-layers"},
    Unread{"gemma2", "gemma3_text", "attention scores and logits are capped by tanh"},
    Unread{"glm4_moe", "llama", kExperts},
    Unread{"gpt_neox", "llama", "LayerNorm, attention and feed-forward layer read one input"},
    Unread{"gpt_oss", "llama", kExperts},
    Unread{"granitemoehybrid", "granite", kLinearAttention},
    Unread{"llama4", "llama", kExperts},
    Unread{"mixtral", "mistral", kExperts},
    Unread{"olmo", "olmo2", "LayerNorm without weights before the sub-layers"},
    Unread{"phi", "llama", "attention and feed-forward layer read one norm"},
    Unread{"qwen2_moe", "qwen2", kExperts},
    Unread{"qwen3_5", "qwen3", kLinearAttention},
    Unread{"qwen3_moe", "qwen3", kExperts},
    Unread{"qwen3_next", "qwen3", kLinearAttention},
};

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

std::string ReasonAgainst(std::string_view name) {
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
  if (distance > SuggestionLimit(name)) return {};
  return fmt::format("the nearest name is {}", nearest);
}

}  // namespace sft::plan
