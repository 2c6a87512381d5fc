#include "common/plan/stages.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "common/plan/pipeline_plan.h"

namespace sft::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A Llama; `head` in blocks is what its vocabulary makes of the head.
ModelConfig LlamaOf(int layers, int vocab, bool tied = false) {
  const auto config = ParseModelConfig(fmt::format(
      R"({{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": {},
          "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": {},
          "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_act": "silu",
          "rms_norm_eps": 1e-5, "tie_word_embeddings": {}}})",
      vocab, layers, tied));
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

spec::JobSpec JobOf(int stages, int pieces = 1, std::vector<std::string> map = {"auto"}) {
  spec::JobSpec job;
  job.training.mode = spec::Mode::kFullFinetune;
  job.compute.gpu_count = job.compute.gpus_per_node = stages;
  job.parallelism.pipeline_parallel_size = stages;
  job.parallelism.virtual_pipeline_parallel_size = pieces;
  job.parallelism.device_map = std::move(map);
  job.data.loss_on = spec::LossOn::kAll;
  return job;
}

std::string Refused(const ModelShape& shape, const spec::JobSpec& job, double memory = 0) {
  const auto map = DivideModel(shape, job, memory);
  EXPECT_FALSE(map.ok()) << map->ToText();
  return map.status().ToString();
}

TEST(StagesTest, OneStageHasAll) {
  const auto map = DivideModel(LlamaOf(4, 128), JobOf(1));
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->ToText(), "all layers");
  for (int unit = 0; unit < 6; ++unit) EXPECT_EQ(map->StageOf(unit), 0);
}

TEST(StagesTest, LayersAreDividedEvenlyWhereTheHeadIsSmall) {
  const auto map = DivideModel(LlamaOf(8, 128), JobOf(4));
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->ToText(), "layers 0-1 | 2-3 | 4-5 | 6-7 + head");
  EXPECT_THAT(map->begins, ElementsAre(0, 3, 5, 7, 10));
}

// A head of 4 blocks' products: 12 in all, 3 a stage, which nothing but the head itself exceeds.
TEST(StagesTest, AHeadOfManyProductsLeavesTheLastStageFewerLayers) {
  const auto map = DivideModel(LlamaOf(8, 4 * 2560), JobOf(4));
  ASSERT_TRUE(map.ok()) << map.status();
  const UnitCosts costs = *CostsOf(LlamaOf(8, 4 * 2560), JobOf(4));
  EXPECT_NEAR(costs.time.back() / costs.time[1], 4.0, 0.01);
  EXPECT_EQ(map->ToText(), "layers 0-1 | 2-4 | 5-7 | head");
}

TEST(StagesTest, PiecesTakeTurns) {
  const auto map = DivideModel(LlamaOf(8, 128), JobOf(2, 2));
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->pieces(), 4);
  EXPECT_EQ(map->pieces_of_stage(), 2);
  std::vector<int> stages;
  for (int unit = 0; unit < 10; ++unit) stages.push_back(map->StageOf(unit));
  EXPECT_THAT(stages, ElementsAre(0, 0, 0, 1, 1, 0, 0, 1, 1, 1));
}

// No other cut has a dearest piece that is cheaper: all of them are tried.
TEST(StagesTest, TheSlowestPieceIsAsFastAsCanBe) {
  for (const int vocab : {128, 2560, 7000, 20000}) {
    for (const int layers : {5, 9}) {
      const ModelConfig model = LlamaOf(layers, vocab);
      const UnitCosts costs = *CostsOf(model, JobOf(3));
      const auto most = [&](const std::vector<int>& begins) {
        double worst = 0;
        for (size_t piece = 0; piece + 1 < begins.size(); ++piece) {
          worst = std::max(worst, std::accumulate(costs.time.begin() + begins[piece],
                                                  costs.time.begin() + begins[piece + 1], 0.0));
        }
        return worst;
      };
      const auto map = DivideModel(model, JobOf(3));
      ASSERT_TRUE(map.ok());
      double best = most(map->begins);
      for (int a = 1; a < layers + 1; ++a) {
        for (int b = a + 1; b < layers + 2; ++b) {
          EXPECT_LE(best, most({0, a, b, layers + 2})) << a << " " << b;
        }
      }
    }
  }
}

TEST(StagesTest, BalancedStagesHoldAsMuchAsEachOther) {
  const ModelConfig model = LlamaOf(16, 5000);
  const spec::JobSpec job = JobOf(4, 1, {"balanced"});
  const auto map = DivideModel(model, job);
  ASSERT_TRUE(map.ok()) << map.status();
  const UnitCosts costs = *CostsOf(model, job);
  std::vector<double> held(4, 0.0);
  for (size_t unit = 0; unit < costs.memory.size(); ++unit) {
    held[static_cast<size_t>(map->StageOf(static_cast<int>(unit)))] += costs.memory[unit];
  }
  const auto [least, most] = std::minmax_element(held.begin(), held.end());
  EXPECT_LE(*most - *least, costs.memory[1] + costs.memory[0]) << map->ToText();
}

TEST(StagesTest, SequentialFillsOneStageBeforeTheNext) {
  const ModelConfig model = LlamaOf(8, 128);
  const spec::JobSpec job = JobOf(3, 1, {"sequential"});
  const double block = (*CostsOf(model, job)).memory[1];
  // Room for four, less the largest block; with the embedding, which is small.
  const auto map = DivideModel(model, job, 4.9 * block);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->ToText(), "layers 0-2 | 3-5 | 6-7 + head");
  EXPECT_THAT(Refused(model, job, 20 * block),
              HasSubstr("puts the whole model on the first of 3 GPUs"));
  EXPECT_THAT(Refused(model, job, 3.0 * block), HasSubstr("needs 5 stages"));
}

TEST(StagesTest, TablesAreObeyedByTheirLongestNames) {
  const auto map = DivideModel(
      LlamaOf(4, 128),
      JobOf(2, 1, {"=0", "model.layers.2=1", "model.layers.3=1", "model.norm=1", "lm_head=1"}));
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->ToText(), "layers 0-1 | 2-3 + head");
  const auto turns =
      DivideModel(LlamaOf(4, 128),
                  JobOf(2, 2,
                        {"model.embed_tokens=0", "model.layers.0=0", "model.layers.1=1",
                         "model.layers.2=0", "model.layers.3=1", "model.norm=1", "lm_head=1"}));
  ASSERT_TRUE(turns.ok()) << turns.status();
  EXPECT_EQ(turns->pieces(), 4);
}

TEST(StagesTest, WrongTablesAreRefusedEachWithItsReason) {
  const ModelConfig model = LlamaOf(4, 128);
  const std::vector<std::string> low = {"model=0", "lm_head=1", "model.norm=1"};
  EXPECT_THAT(Refused(model, JobOf(2, 1, {"model.layers=0", "lm_head=1"})),
              HasSubstr("no entry for model.embed_tokens"));
  EXPECT_THAT(Refused(model, JobOf(2, 1, {"model=0", "lm_head=1"})),
              HasSubstr("puts model.norm on 0 and lm_head on 1"));
  auto with = low;
  with.emplace_back("model.layers.1.mlp=1");
  EXPECT_THAT(Refused(model, JobOf(2, 1, with)), HasSubstr("a layer is not divided"));
  with = low;
  with.emplace_back("model.layers.9=1");
  EXPECT_THAT(Refused(model, JobOf(2, 1, with)),
              HasSubstr("names \"model.layers.9\", which this model does not have"));
  with = low;
  with.emplace_back("model.embed_tokens=1");
  EXPECT_THAT(Refused(model, JobOf(2, 1, with)), HasSubstr("numbered from 0"));
  with = low;
  with.emplace_back("model.layers.1=1");
  EXPECT_THAT(Refused(model, JobOf(2, 1, with)),
              HasSubstr("set virtual_pipeline_parallel_size = 2"));
}

TEST(StagesTest, MorePiecesThanLayersAreRefused) {
  EXPECT_THAT(Refused(LlamaOf(4, 128), JobOf(8)), HasSubstr("it has 4 layers: at most 4 stages"));
  EXPECT_THAT(Refused(LlamaOf(8, 128), JobOf(4, 3)),
              HasSubstr("at most 2 pieces in each of 4 stages"));
}

TEST(StagesTest, TooFewMicroBatchesAreWarnedOf) {
  spec::JobSpec job = JobOf(4);
  job.hyperparameters.gradient_accumulation_steps = 2;
  ASSERT_EQ(WarnOfStages(job).size(), 1u);
  EXPECT_THAT(WarnOfStages(job)[0].message,
              HasSubstr("2 micro-batches for 4 stages leave each GPU idle for 60 % of a step; "
                        "gradient_accumulation_steps = 16 would leave it 16 %"));
  job.hyperparameters.gradient_accumulation_steps = 4;
  EXPECT_TRUE(WarnOfStages(job).empty());
}

// Plans of an H100 for a model that one does not hold.
PlanInput Large(int stages, int pieces = 1) {
  PlanInput input;
  const auto config = ParseModelConfig(R"({"model_type": "llama",
      "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 8192,
      "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
      "num_key_value_heads": 8, "hidden_act": "silu", "rms_norm_eps": 1e-5,
      "tie_word_embeddings": false})");
  EXPECT_TRUE(config.ok()) << config.status();
  input.shape = *config;
  input.job = JobOf(stages, pieces);
  input.job.training.mode = spec::Mode::kLora;
  input.job.hyperparameters.per_device_batch = 1;
  input.job.hyperparameters.gradient_accumulation_steps = 16;
  input.job.hyperparameters.global_batch = 16;
  input.gpu = NearestGpu("H100");
  input.memory_bytes = int64_t{76} << 30;
  return input;
}

TEST(PipelinePlanTest, FourGpusHoldWhatOneDoesNot) {
  EXPECT_FALSE(MakePlan(Large(1)).ok());
  const auto plan = MakePlan(Large(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->execution.stages.stages, 4);
  EXPECT_LE(plan->memory.reserved(), Large(4).memory_bytes);
  EXPECT_GT(plan->memory.weights, (int64_t{33} << 30));  // a quarter of 140 GB
  EXPECT_LT(plan->memory.weights, (int64_t{40} << 30));
  EXPECT_THAT(Describe(*plan, Large(4).job, 80), HasSubstr("4 stages: layers 0-"));
  EXPECT_THAT(Describe(*plan, Large(4).job, 80), HasSubstr("idle for 16 % of a step"));
}

TEST(PipelinePlanTest, MoreStagesAreFasterAndPiecesIdleLess) {
  const double four = MakePlan(Large(4))->tokens_per_second;
  const double eight = MakePlan(Large(8))->tokens_per_second;
  const double pieces = MakePlan(Large(8, 2))->tokens_per_second;
  EXPECT_GT(eight, 1.4 * four);
  EXPECT_GT(pieces, 1.05 * eight);
}

TEST(PipelinePlanTest, ASequentialStageIsFilledWithWhatItsActivationsLeave) {
  PlanInput input = Large(2);
  input.job.parallelism.device_map = {"sequential"};
  input.memory_bytes = int64_t{80} << 30;
  const auto plan = MakePlan(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(plan->memory.reserved(), input.memory_bytes);
  const auto balanced = MakePlan([&] {
    PlanInput other = input;
    other.job.parallelism.device_map = {"balanced"};
    return other;
  }());
  ASSERT_TRUE(balanced.ok()) << balanced.status();
  EXPECT_GT(plan->execution.stages.begins[1], balanced->execution.stages.begins[1]);
  input.memory_bytes = int64_t{300} << 30;
  EXPECT_THAT(MakePlan(input).status().ToString(),
              HasSubstr("puts the whole model on the first of 2 GPUs"));
}

TEST(PipelinePlanTest, WhatDoesNotFitNamesTheStage) {
  PlanInput input = Large(2);
  input.memory_bytes = int64_t{60} << 30;
  const auto plan = MakePlan(input);
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.status().ToString(), HasSubstr("of 2 (layers 0-"));
  EXPECT_THAT(plan.status().ToString(), HasSubstr("more stages (pipeline_parallel_size)"));
}

}  // namespace
}  // namespace sft::plan
