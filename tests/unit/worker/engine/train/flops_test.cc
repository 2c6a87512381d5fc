#include "worker/engine/train/flops.h"

#include <gtest/gtest.h>

#include <vector>

#include "worker/engine/model/adapters.h"
#include "worker/engine/model/families.h"

namespace sft::engine {
namespace {

ModelConfig Config() {
  return ParseConfig(R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 8,
    "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64})",
                     "config.json");
}

// Weights of the block's products: q 64, k 32, v 32, o 64, gate, up and down 128 each.
constexpr double kBlock = 64 + 32 + 32 + 64 + 3 * 128;
constexpr double kPairs = 4 * 5 / 2.0 + 2 * 3 / 2.0;  // documents of 4 and 2 tokens

TEST(StepFlopsTest, FullTrainingCountsSixForAWeightAndATokenOrTarget) {
  ModelLayout layout = MakeLayout(Config());
  spec::JobSpec job;
  job.training.mode = spec::Mode::kFullFinetune;
  PrepareLayout(layout, job);
  const std::vector<int64_t> lengths = {4, 2};
  EXPECT_EQ(StepFlops(Config(), layout).Of(lengths, 3).total(),
            6 * kBlock * 6 + 6 * 800 * 3 + 12 * 8 * kPairs);
}

TEST(StepFlopsTest, AFrozenBaseHasNoGradientOfItsWeights) {
  ModelLayout layout = MakeLayout(Config());
  spec::JobSpec job;
  job.training.mode = spec::Mode::kLora;
  job.lora.r = 1;
  job.lora.target_modules = {"q_proj"};
  PrepareLayout(layout, job);
  const std::vector<int64_t> lengths = {4, 2};
  const double adapter = 8 + 8;
  EXPECT_EQ(StepFlops(Config(), layout).Of(lengths, 3).total(),
            (4 * kBlock + 6 * adapter) * 6 + 4 * 800 * 3 + 12 * 8 * kPairs);
}

TEST(StepFlopsTest, OfExpertsThoseCountThatATokenGoesTo) {
  const ModelConfig config =
      ParseConfig(R"({"model_type": "qwen3_moe", "vocab_size": 100, "hidden_size": 8,
    "intermediate_size": 16, "moe_intermediate_size": 4, "num_experts": 6,
    "num_experts_per_tok": 2, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64})",
                  "config.json");
  const std::vector<int64_t> lengths = {4, 2};
  const double block =
      64 + 32 + 32 + 64 + 6 * 8 + 2 * 3 * 4 * 8;  // the router reads all its weights
  ModelLayout whole = MakeLayout(config);
  spec::JobSpec full;
  full.training.mode = spec::Mode::kFullFinetune;
  PrepareLayout(whole, full);
  EXPECT_EQ(StepFlops(config, whole).Of(lengths, 3).total(),
            6 * block * 6 + 6 * 800 * 3 + 12 * 8 * kPairs);
  ModelLayout adapted = MakeLayout(config);
  spec::JobSpec lora;
  lora.training.mode = spec::Mode::kLora;
  lora.lora.r = 3;
  lora.lora.target_modules = {"gate_proj", "up_proj", "down_proj"};
  PrepareLayout(adapted, lora);
  const double adapters = 2 * 3 * ((8 + 2 * 4) + (4 + 8));
  EXPECT_EQ(StepFlops(config, adapted).Of(lengths, 3).total(),
            (4 * block + 6 * adapters) * 6 + 4 * 800 * 3 + 12 * 8 * kPairs);
}

}  // namespace
}  // namespace sft::engine
