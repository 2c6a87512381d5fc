#include "worker/engine/export/vllm_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "common/plan/tensors.h"
#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

// What vLLM (0.32) calls the experts of a layer and their linears.
struct VllmFamily {
  std::string_view family, experts, gate, up, down;
};

constexpr VllmFamily kByExpert[] = {
    {"qwen3_moe", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
    {"qwen3_next", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
    {"glm4_moe", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
    {"mixtral", "block_sparse_moe.experts", "w1", "w3", "w2"},
    {"gemma4_text", "experts", "gate_proj", "up_proj", "down_proj"},
};
// Those whose stacks it reads as PEFT has them.
constexpr std::string_view kInStacks[] = {"gpt_oss", "qwen3_5_moe_text"};

constexpr char kServeMerged[] = "serve the merged model: sftctl export JOB --merged";

[[noreturn]] void Refuse(const std::string& what, const char* advice) {
  throw UserError("the adapter cannot be written in vLLM's layout of experts: " + what,
                  "bad_adapter", advice);
}

const VllmFamily& FamilyOf(const ModelConfig& config) {
  constexpr char kServeAsItIs[] = "serve what the job delivered: sftctl download JOB";
  if (!config.HasExperts()) {
    Refuse(fmt::format("this {} model has no experts, and vLLM reads its adapters as they are",
                       config.family),
           kServeAsItIs);
  }
  if (std::ranges::find(kInStacks, config.family) != std::end(kInStacks)) {
    Refuse(fmt::format("vLLM reads the stacks of {} models as they are, where both stacks of a "
                       "layer are adapted",
                       config.family),
           kServeAsItIs);
  }
  const auto* const found = std::ranges::find(kByExpert, config.family, &VllmFamily::family);
  if (found == std::end(kByExpert)) {
    Refuse(fmt::format("how vLLM calls the experts of {} models is not known", config.family),
           kServeMerged);
  }
  return *found;
}

// The stacks of a layer's experts, by the name of its block.
struct Stacks {
  const LoraPair* gate_up = nullptr;
  const LoraPair* down = nullptr;
};

std::map<std::string, Stacks> StacksOf(const ModelConfig& config, const Adapter& adapter) {
  const plan::TensorNames& names = plan::NamesOf(config);
  std::map<std::string, Stacks> layers;
  for (const LoraPair& pair : adapter.pairs) {
    if (pair.experts == 0) continue;
    for (const bool is_down : {false, true}) {
      const std::string end =
          fmt::format(".{}", is_down ? names.experts_down : names.experts_gate_up);
      if (!pair.module.ends_with(end)) continue;
      Stacks& stacks = layers[pair.module.substr(0, pair.module.size() - end.size())];
      (is_down ? stacks.down : stacks.gate_up) = &pair;
    }
  }
  return layers;
}

// The factors of one expert's linear, rows [first, first + rows) of its second factor.
LoraPair OfExpert(const LoraPair& stack, const std::string& experts, int64_t expert,
                  std::string_view linear, int64_t first, int64_t rows) {
  const int64_t rank = stack.a.size(0) / stack.experts, out = stack.b.size(0) / stack.experts;
  return {.module = fmt::format("{}.{}.{}", experts, expert, linear),
          .a = stack.a.narrow(0, expert * rank, rank).clone(),
          .b = stack.b.narrow(0, expert * out + first, rows).clone()};
}

}  // namespace

void CheckVllmAdapter(const ModelConfig& config, const Adapter& adapter) {
  FamilyOf(config);
  if (adapter.config.use_dora) Refuse("vLLM has no DoRA", kServeMerged);
  if (!adapter.config.rank_pattern.empty() || !adapter.config.alpha_pattern.empty()) {
    Refuse("rank_pattern and alpha_pattern would be held against other names", kServeMerged);
  }
  if (!adapter.others.empty()) {
    Refuse(fmt::format("vLLM takes neither trained biases nor modules_to_save, and it has {}",
                       adapter.others.front().name),
           kServeMerged);
  }
  const std::map<std::string, Stacks> layers = StacksOf(config, adapter);
  if (layers.empty()) {
    Refuse("no experts are adapted, and vLLM reads all else as it is",
           "serve what the job delivered: sftctl download JOB");
  }
  for (const auto& [block, stacks] : layers) {
    if (stacks.gate_up != nullptr && stacks.down != nullptr) continue;
    Refuse(fmt::format("in {} one of the two stacks of experts has no adapter, and vLLM wants one "
                       "of gate, up and down of every expert",
                       block),
           kServeMerged);
  }
}

VllmAdapter WriteVllmAdapter(const VllmAdapterOptions& options) {
  const ModelConfig config = ReadConfig(options.model_dir);
  Adapter adapter = ReadAdapter(options.adapter_dir, config.prefix);
  CheckVllmAdapter(config, adapter);
  const VllmFamily& family = FamilyOf(config);
  std::vector<LoraPair> pairs;
  for (const LoraPair& pair : adapter.pairs) {
    if (pair.experts == 0) pairs.push_back(pair);
  }
  for (const auto& [block, stacks] : StacksOf(config, adapter)) {
    const std::string experts = fmt::format("{}.{}", block, family.experts);
    const int64_t count = stacks.gate_up->experts;
    const int64_t out = stacks.gate_up->b.size(0) / count, size = out / 2;
    for (int64_t e = 0; e < count; ++e) {
      pairs.push_back(OfExpert(*stacks.gate_up, experts, e, family.gate, 0, size));
      pairs.push_back(OfExpert(*stacks.gate_up, experts, e, family.up, size, size));
      pairs.push_back(
          OfExpert(*stacks.down, experts, e, family.down, 0, stacks.down->b.size(0) / count));
    }
  }
  std::set<std::string> targets;
  for (const LoraPair& pair : pairs) targets.insert(plan::LastName(pair.module));
  adapter.config.target_modules.assign(targets.begin(), targets.end());
  adapter.config.target_parameters.clear();
  WriteAdapter({.target = options.target, .source = options.text_dir, .base_prefix = config.prefix},
               adapter.config, pairs);
  return {static_cast<int64_t>(pairs.size()), adapter.config.r};
}

}  // namespace sft::engine
