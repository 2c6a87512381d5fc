#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/plan/needs.h"
#include "common/plan/tensors.h"
#include "tests/unit/common/plan/experts.h"
#include "tests/unit/common/plan/jobs.h"
#include "tests/unit/common/plan/shapes.h"

// Jobs on mixtures of experts: adapters, what is refused, memory and time.

namespace sft::plan {
namespace {

using ::testing::HasSubstr;

int64_t Trained(const ModelShape& shape, const spec::JobSpec& job) {
  const auto units = MakeUnits(shape, job);
  EXPECT_TRUE(units.ok()) << units.status();
  return units.ok() ? CountParameters(*units).trainable : -1;
}

std::string ProblemOf(const ModelShape& shape, const spec::JobSpec& job) {
  const auto problem = CheckJob(shape, job);
  return problem ? problem->key + ": " + problem->message : "";
}

TEST(ExpertsJobTest, EachExpertHasAnAdapterOfItsOwn) {
  const ModelConfig qwen = ParsedModel(kQwen3Of30B);
  const int64_t gate_up = int64_t{48} * 128 * 4 * (2048 + 2 * 768);
  const int64_t down = int64_t{48} * 128 * 4 * (768 + 2048);
  EXPECT_EQ(Trained(qwen, Lora(4, {"experts.gate_up_proj"})), gate_up);
  EXPECT_EQ(Trained(qwen, Lora(4, {"gate_proj", "up_proj"})), gate_up);
  EXPECT_EQ(Trained(qwen, Lora(4, {"down_proj"})), down);
  const auto units = MakeUnits(qwen, Lora(4, {"down_proj"}));
  const auto& block = units->at(1).parameters;
  EXPECT_EQ(block.back().name, "model.layers.0.mlp.experts.down_proj.lora_B.weight");
  EXPECT_EQ(block.back().elements, 128 * 2048 * 4);
  EXPECT_EQ(block[block.size() - 2].elements, 128 * 4 * 768);
}

TEST(ExpertsJobTest, TheDefaultTargetsAreAllLinears) {
  const ModelConfig qwen = ParsedModel(kQwen3Of30B);
  const int64_t all = Trained(qwen, Lora(8, {"all-linear"}));
  EXPECT_EQ(Trained(qwen, Lora(8, spec::JobSpec().lora.target_modules)), all);
  const int64_t attention = int64_t{48} * 8 * (2 * (2048 + 4096) + 2 * (2048 + 512));
  EXPECT_EQ(all, attention + int64_t{48} * 128 * 8 * (2048 + 1536 + 768 + 2048));
  EXPECT_EQ(Trained(qwen, Lora(8, {"q_proj", "k_proj", "v_proj", "o_proj"})), attention);
  const ModelConfig mixtral = ParsedModel(kMixtral8x7B);
  EXPECT_EQ(Trained(mixtral, Lora(8, spec::JobSpec().lora.target_modules)),
            Trained(mixtral, Lora(8, {"all-linear"})));
}

TEST(ExpertsJobTest, InLayersWithoutExpertsGatesAndUpsAreLinearsOfTheirOwn) {
  const ModelConfig mixed = ParsedModel(TinyExperts(R"(, "mlp_only_layers": [0])"));
  const int64_t dense = 2 * (64 + 96), stack = 8 * (64 + 64);
  EXPECT_EQ(Trained(mixed, Lora(1, {"gate_proj", "up_proj"})), dense + 3 * stack);
  EXPECT_EQ(ProblemOf(mixed, Lora(1, {"gate_proj"})),
            "lora.target_modules: \"gate_proj\" alone would leave the experts out, whose gates and "
            "ups are adapted together: name gate_proj and up_proj, or \"mlp.gate_proj\" for dense "
            "layers alone");
  EXPECT_EQ(Trained(mixed, Lora(1, {"mlp.gate_proj"})), dense / 2);
  EXPECT_EQ(Trained(mixed, Lora(1, spec::JobSpec().lora.target_modules)),
            Trained(mixed, Lora(1, {"all-linear"})));
}

TEST(ExpertsJobTest, GatesWithoutUpsAreRefusedWithWhatToName) {
  const ModelConfig qwen = ParsedModel(kQwen3Of30B), mixtral = ParsedModel(kMixtral8x7B);
  for (const char* target : {"gate_proj", "up_proj", "experts.3.gate_proj"}) {
    const std::string problem = ProblemOf(qwen, Lora(8, {"q_proj", target}));
    EXPECT_THAT(problem, HasSubstr(std::string("lora.target_modules: \"") + target +
                                   "\" matches no linear of this qwen3_moe model; it has q_proj, "
                                   "k_proj, v_proj, o_proj, gate_up_proj, down_proj"));
    EXPECT_THAT(problem, HasSubstr("name \"gate_proj\" and \"up_proj\" both, or "
                                   "\"experts.gate_up_proj\""));
  }
  EXPECT_THAT(ProblemOf(mixtral, Lora(8, {"w1"})), HasSubstr("name \"gate_proj\" and \"up_proj\""));
  EXPECT_EQ(ProblemOf(qwen, Lora(8, {"gate"})).find("experts.gate_up_proj"), std::string::npos)
      << "the router is no linear that adapters take";
  EXPECT_EQ(ProblemOf(qwen, Lora(8, {"gate_proj", "up_proj"})), "");
}

TEST(ExpertsJobTest, DoraAndDropoutAreRefusedOnWhatPeftTakesForParameters) {
  const ModelConfig qwen = ParsedModel(kQwen3Of30B);
  spec::JobSpec dora = Lora(8, {"all-linear"}), dropout = dora;
  dora.lora.use_dora = true;
  dropout.lora.dropout = 0.05;
  EXPECT_THAT(
      ProblemOf(qwen, dora),
      HasSubstr("lora.use_dora: DoRA is not supported for adapters of feed-forward layers in "
                "a model with experts"));
  EXPECT_THAT(ProblemOf(qwen, dora),
              HasSubstr("use_dora = false, or target_modules = [\"q_proj\""));
  EXPECT_THAT(ProblemOf(qwen, dropout), HasSubstr("lora.dropout: dropout is not supported"));
  EXPECT_THAT(ProblemOf(qwen, dropout),
              HasSubstr("takes model.layers.0.mlp.experts.gate_up_proj: use dropout = 0, or"));
  dora.lora.target_modules = {"down_proj"};
  EXPECT_THAT(ProblemOf(qwen, dora), HasSubstr("mlp.experts.down_proj"));
  for (spec::JobSpec* job : {&dora, &dropout}) {
    job->lora.target_modules = {"q_proj", "o_proj"};
    EXPECT_EQ(ProblemOf(qwen, *job), "");
    job->lora.target_modules = {"all-linear"};
    EXPECT_EQ(ProblemOf(Qwen3Of8B(), *job), "");
  }
  // Linears of dense layers too, and of the expert that every token goes to.
  EXPECT_THAT(ProblemOf(ParsedModel(TinyExperts(R"(, "mlp_only_layers": [0, 1])")),
                        [] {
                          spec::JobSpec job = Lora(8, {"all-linear"});
                          job.lora.use_dora = true;
                          return job;
                        }()),
              HasSubstr("takes model.layers.0.mlp.gate_proj"));
  const ModelConfig glm = ParsedModel(R"({"model_type": "glm4_moe", "head_dim": 128})");
  for (spec::JobSpec* job : {&dora, &dropout}) {
    job->lora.target_modules = {"shared_experts.down_proj"};
    EXPECT_THAT(ProblemOf(glm, *job),
                HasSubstr("takes model.layers.1.mlp.shared_experts.down_proj"));
  }
}

TEST(ExpertsJobTest, ProductsInFp8AreOfFrozenExperts) {
  const ModelConfig qwen = ParsedModel(kQwen3Of30B);
  const auto with = [](spec::JobSpec job, spec::Matmul matmul) {
    job.training.matmul = matmul;
    return job;
  };
  for (const spec::Matmul matmul : {spec::Matmul::kFp8, spec::Matmul::kFp8Bf16Wgrad}) {
    EXPECT_THAT(ProblemOf(qwen, with(Full(), matmul)),
                HasSubstr("training.matmul: experts are not trained with products in FP8"));
  }
  EXPECT_EQ(ProblemOf(qwen, with(Qlora(4, 1, 2048), spec::Matmul::kFp8)), "");
  EXPECT_EQ(ProblemOf(qwen, with(Lora(8, {"all-linear"}), spec::Matmul::kFp8)), "");
  for (const char* family : {"qwen3_next", "qwen3_5_moe_text"}) {
    const ModelConfig gated = ParsedModel(fmt::format(R"({{"model_type": "{}"}})", family));
    for (const spec::JobSpec& job : {Lora(8, {"all-linear"}), Qlora(4, 1, 2048)}) {
      EXPECT_THAT(ProblemOf(gated, with(job, spec::Matmul::kFp8)),
                  HasSubstr("shared_expert_gate of this"));
    }
  }
}

TEST(ExpertsJobTest, FrozenWeightsInFp8AreWhole) {
  spec::JobSpec job = Lora(8, {"all-linear"});
  job.training.matmul = spec::Matmul::kFp8;
  EXPECT_EQ(ProblemOf(Qwen3Of8B(), job), "");
  job.parallelism.sharding = spec::Sharding::kFullShard;
  EXPECT_THAT(ProblemOf(Qwen3Of8B(), job), HasSubstr("training.matmul: frozen weights in FP8"));
  job.parallelism.sharding = spec::Sharding::kDdp;
  job.parallelism.offload_param = true;
  EXPECT_THAT(ProblemOf(Qwen3Of8B(), job), HasSubstr("stay in host memory"));
}

TEST(ExpertsJobTest, StacksAreQuantisedAndRoutersAreNot) {
  const ModelConfig qwen = ParsedModel(kQwen3Of30B);
  const auto units = MakeUnits(qwen, Qlora(1, 1, 512));
  ASSERT_TRUE(units.ok()) << units.status();
  for (const Parameter& p : units->at(1).parameters) {
    EXPECT_EQ(p.quantized, p.name.ends_with("_proj.weight")) << p.name;
    EXPECT_EQ(p.trainable, p.adapter) << p.name;
  }
  spec::JobSpec eight = Qlora(1, 1, 512);
  eight.quantization.bits = 8;
  const auto rows = MakeUnits(qwen, eight)->at(1).parameters;
  const auto down = std::find_if(rows.begin(), rows.end(), [](const Parameter& p) {
    return p.name.ends_with("experts.down_proj.weight");
  });
  ASSERT_NE(down, rows.end());
  EXPECT_EQ(down->rows, 128 * 2048);
}

TEST(ExpertsJobTest, ExpertsOfACheckpointInFourBitsAreInSixteen) {
  ModelConfig qwen = ParsedModel(kQwen3Of30B);
  qwen.stored.form = StoredForm::kNf4;
  const auto units = MakeUnits(qwen, Qlora(1, 1, 512));
  ASSERT_TRUE(units.ok()) << units.status();
  for (const Parameter& p : units->at(1).parameters) {
    EXPECT_EQ(p.quantized,
              p.name.find("self_attn") != p.name.npos && p.name.ends_with("_proj.weight"))
        << p.name;
  }
}

TEST(ExpertsJobTest, MatricesAreThoseOfOneExpert) {
  const ModelConfig mixed = ParsedModel(TinyExperts(R"(, "mlp_only_layers": [0])"));
  const auto blocks = MatricesOf(mixed, Lora(4, {"all-linear"}));
  EXPECT_EQ(blocks[0].gate_up.experts, 0);
  EXPECT_EQ(blocks[0].gate_up.rows, 2 * 96);
  EXPECT_EQ(blocks[0].gate_up.rank, 8);
  EXPECT_EQ(blocks[1].gate_up.experts, 8);
  EXPECT_EQ(blocks[1].gate_up.rows, 2 * 32);
  EXPECT_EQ(blocks[1].gate_up.columns, 64);
  EXPECT_EQ(blocks[1].gate_up.rank, 4);
  EXPECT_EQ(blocks[1].down.rows, 64);
  EXPECT_EQ(blocks[1].down.columns, 32);
}

// The model with other numbers of experts.
ModelShape WithExperts(ModelShape shape, int64_t experts, int64_t chosen) {
  for (LayerShape& layer : shape.layer_shapes) {
    layer.experts = experts;
    layer.chosen = chosen;
  }
  return shape;
}

Problem ProblemFor(const ModelShape& shape, const spec::JobSpec& job) {
  auto problem = MakeProblem(shape, job, job.hyperparameters.sequence_length);
  EXPECT_TRUE(problem.ok()) << problem.status();
  return *std::move(problem);
}

TEST(ExpertsCostTest, ATokenIsMultipliedWithTheExpertsThatItGoesTo) {
  const ModelShape qwen = ParsedModel(kQwen3Of30B);
  const BlockCost block = ProblemFor(qwen, Qlora(1, 1, 512)).blocks[0];
  const int64_t attention = 2048 * (4096 + 2 * 512) + 4096 * 2048;
  const int64_t expert = 3 * 768 * 2048;
  EXPECT_EQ(block.weights, attention + 8 * expert + 128 * 2048);
  EXPECT_EQ(block.stacks, 128 * expert);
  EXPECT_EQ(block.held_weights, attention + 128 * expert);
  const auto mlp = static_cast<size_t>(Recompute::kMlp);
  const auto all = static_cast<size_t>(Recompute::kAll);
  EXPECT_EQ(block.weights_again[mlp], 8 * expert / 3 * 2);
  EXPECT_EQ(block.stacks_again[mlp], 128 * expert / 3 * 2);
  EXPECT_EQ(block.weights_again[all], attention + 8 * expert / 3 * 2) << "experts are chosen once";
}

TEST(ExpertsCostTest, ALayerKeepsWhatItsExpertsMakeAndTheChoice) {
  const ModelShape qwen = ParsedModel(kQwen3Of30B);
  const auto saved = [&](const spec::JobSpec& job, Recompute level) {
    return ProblemFor(qwen, job).blocks[0].saved[static_cast<size_t>(level)];
  };
  spec::JobSpec attention = Qlora(1, 1, 512);
  attention.lora.target_modules = {"q_proj"};
  // Rows of 8 experts: gates and ups.
  EXPECT_EQ(saved(attention, Recompute::kNorms) - saved(attention, Recompute::kMlp),
            8 * 2 * 768 * 2);
  // The block's input, and of each choice a weight in fp32 and four numbers of 8 bytes.
  EXPECT_EQ(saved(attention, Recompute::kAll), 2048 * 2 + 8 * (4 + 4 * 8));
  spec::JobSpec all = attention;
  all.lora.target_modules = {"q_proj", "gate_proj", "up_proj", "down_proj"};
  all.lora.r = 16;
  EXPECT_EQ(saved(all, Recompute::kAll) - saved(attention, Recompute::kAll), 8 * 16 * 2);
  EXPECT_EQ(saved(all, Recompute::kNorms) - saved(attention, Recompute::kNorms), 2 * 8 * 16 * 2);
}

TEST(ExpertsCostTest, MoreExpertsAndMoreOfThemForATokenTakeMoreMemory) {
  const ModelShape qwen = ParsedModel(kQwen3Of30B);
  for (int level = 0; level < kRecomputeLevels; ++level) {
    for (const int64_t tile : {0, 4096}) {
      for (const bool full : {false, true}) {
        spec::JobSpec job = Qlora(4, 1, 2048);
        if (full) job.training = Full().training;
        ExecutionPlan run{.rows = 4,
                          .deep = static_cast<Recompute>(level),
                          .shallow = static_cast<Recompute>(level),
                          .deep_layers = 48,
                          .mlp_rows = tile};
        const auto bytes = [&](int64_t experts, int64_t chosen) {
          return PredictMemory(ProblemFor(WithExperts(qwen, experts, chosen), job), run).reserved();
        };
        EXPECT_LT(bytes(64, 8), bytes(128, 8)) << level;
        EXPECT_LT(bytes(128, 4), bytes(128, 8)) << level;
        EXPECT_LT(bytes(128, 8), bytes(128, 9)) << level;
      }
    }
  }
}

TEST(ExpertsCostTest, FrozenExpertsInFp8TakeNoMoreMemoryAndLessTime) {
  const ModelShape qwen = ParsedModel(kQwen3Of30B);
  spec::JobSpec plain = Lora(16, {"all-linear"});
  plain.hyperparameters.sequence_length = 4096;
  spec::JobSpec fp8 = plain;
  fp8.training.matmul = spec::Matmul::kFp8;
  const ExecutionPlan run{.rows = 4};
  const Problem of_plain = ProblemFor(qwen, plain), of_fp8 = ProblemFor(qwen, fp8);
  // Held twice in half the bytes; a scale for each row and column of each expert.
  const int64_t scales = int64_t{48} * 128 * (2 * 768 + 2048 + 2048 + 768);
  EXPECT_EQ(PredictMemory(of_fp8, run).weights, PredictMemory(of_plain, run).weights + 4 * scales);
  const double more = static_cast<double>(PredictMemory(of_fp8, run).reserved()) /
                      static_cast<double>(PredictMemory(of_plain, run).reserved());
  EXPECT_GT(more, 1.0);
  EXPECT_LT(more, 1.03);
  const GpuRates& gpu = *FindGpu("H200");
  const StepTime before = PredictTime(of_plain, run, gpu), after = PredictTime(of_fp8, run, gpu);
  EXPECT_GT(before.total() / after.total(), 1.1);
  EXPECT_GT(after.elementwise, before.elementwise);
}

TEST(ExpertsCostTest, QuantisedExpertsPassThroughBf16OnTheirWayToFp8) {
  const ModelShape qwen = ParsedModel(kQwen3Of30B);
  const spec::JobSpec plain = Qlora(4, 1, 2048);
  spec::JobSpec fp8 = plain;
  fp8.training.matmul = spec::Matmul::kFp8;
  const ExecutionPlan run{.rows = 4};
  const auto transients = [&](const spec::JobSpec& job) {
    return PredictMemory(ProblemFor(qwen, job), run).transients;
  };
  EXPECT_GT(transients(fp8) - transients(plain), int64_t{2} * 128 * 3 * 768 * 2048);
}

TEST(ExpertsCostTest, LayersWithAndWithoutExpertsCostWhatTheyAre) {
  const std::string sizes = R"(, "hidden_size": 1024, "intermediate_size": 4096,
      "moe_intermediate_size": 512, "num_experts": 32)";
  const ModelShape mixed = ParsedModel(TinyExperts(sizes + R"(, "mlp_only_layers": [0])"));
  const ModelShape sparse = ParsedModel(TinyExperts(sizes));
  const ModelShape dense = ParsedModel(TinyExperts(sizes + R"(, "mlp_only_layers": [0, 1, 2, 3])"));
  const spec::JobSpec job = Qlora(1, 1, 512);
  const auto of_mixed = ProblemFor(mixed, job).blocks;
  const auto of_dense = ProblemFor(dense, job).blocks, of_sparse = ProblemFor(sparse, job).blocks;
  EXPECT_EQ(of_mixed[0].saved, of_dense[0].saved);
  EXPECT_EQ(of_mixed[0].weights, of_dense[0].weights);
  EXPECT_EQ(of_mixed[0].stacks, 0);
  EXPECT_EQ(of_mixed[1].saved, of_sparse[1].saved);
  EXPECT_EQ(of_mixed[1].stacks, of_sparse[1].stacks);
  EXPECT_NE(of_mixed[0].backward_mlp, of_mixed[1].backward_mlp);
}

TEST(ExpertsCostTest, BlocksWithExpertsAreNotRecorded) {
  spec::JobSpec job = Lora(8, {"q_proj"});
  const ExecutionPlan run{.rows = 1};
  EXPECT_TRUE(MayRecord(ProblemFor(Qwen3Of600M(), job), run));
  EXPECT_FALSE(MayRecord(ProblemFor(ParsedModel(kQwen3Of30B), job), run));
}

// Seconds of a step of 16 rows in micro-batches of so many.
double StepSeconds(const ModelShape& shape, int64_t rows) {
  const Problem problem = ProblemFor(shape, Auto(16, 2048));
  const ExecutionPlan run{
      .rows = rows, .micro_batches = 16 / rows, .kept = shape.layers, .graphs = false};
  return PredictTime(problem, run, *FindGpu("H100")).total();
}

TEST(ExpertsCostTest, FewRowsAnExpertMakeProductsSlow) {
  const ModelShape qwen = ParsedModel(kQwen3Of30B);
  const Problem problem = ProblemFor(qwen, Auto(16, 2048));
  const auto products = [&](int64_t rows) {
    const ExecutionPlan run{.rows = rows, .micro_batches = 16 / rows};
    return PredictTime(problem, run, *FindGpu("H100")).products;
  };
  // Of a row, each expert gets 2048 * 8 / 128 tokens: the products of experts run at 128 / 192 of
  // their rate; of 16 rows at 2048 / 2112.
  EXPECT_GT(products(1), 1.2 * products(16));
  EXPECT_GT(StepSeconds(qwen, 1), StepSeconds(qwen, 4));
  EXPECT_GT(StepSeconds(qwen, 4), StepSeconds(qwen, 16));
  const double gain = StepSeconds(qwen, 1) / StepSeconds(qwen, 16);
  EXPECT_GT(gain, 1.05 * StepSeconds(Qwen3Of8B(), 1) / StepSeconds(Qwen3Of8B(), 16));
}

TEST(ExpertsCostTest, ThePlanTakesLargerMicroBatchesThanOfADenseModelOfTheSameWork) {
  const ModelShape qwen = ParsedModel(kQwen3Of30B);
  ModelShape dense = WithExperts(qwen, 0, 0);
  for (LayerShape& layer : dense.layer_shapes) layer.intermediate *= 8;
  spec::JobSpec job = Auto(16, 2048);
  job.lora.target_modules = {"q_proj", "k_proj", "v_proj", "o_proj"};
  // Rows of a micro-batch, with so much memory beyond the least.
  const auto rows = [&](const ModelShape& shape, double gigabytes) {
    const double least = static_cast<double>(*LeastBytes(shape, job)) / 1e9;
    const auto plan = MakePlan(Input(job, least + gigabytes, shape));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? plan->execution.rows : 0;
  };
  for (const double gigabytes : {4.0, 10.0, 20.0, 45.0}) {
    EXPECT_GT(rows(qwen, gigabytes), rows(dense, gigabytes)) << gigabytes;
  }
  EXPECT_EQ(rows(qwen, 300), 16);
}

TEST(ExpertsCostTest, TilesSpreadTheirRowsOverAllExpertsAgain) {
  const ModelShape qwen = ParsedModel(kQwen3Of30B);
  const Problem problem = ProblemFor(qwen, Auto(16, 2048));
  const auto seconds = [&](int64_t rows, int64_t tile) {
    const ExecutionPlan run{.rows = rows,
                            .micro_batches = 16 / rows,
                            .deep = Recompute::kAll,
                            .deep_layers = 48,
                            .mlp_rows = tile};
    return PredictTime(problem, run, *FindGpu("H100"));
  };
  EXPECT_GT(seconds(16, 4096).products, 1.05 * seconds(16, 0).products);
  EXPECT_GT(seconds(16, 4096).recompute, 1.05 * seconds(16, 0).recompute);
  EXPECT_GT(seconds(16, 4096).products, seconds(16, 8192).products);
  EXPECT_EQ(seconds(2, 4096).products, seconds(2, 0).products) << "one tile is none";
}

TEST(ExpertsCostTest, KernelsIndexTheRowsOfAllExperts) {
  EXPECT_EQ(Qwen3Of8B().WidestRow(), 2 * 12'288);
  EXPECT_EQ(ParsedModel(kQwen3Of30B).WidestRow(), 8 * 2048);
  EXPECT_EQ(ParsedModel(kMixtral8x7B).WidestRow(), 2 * 2 * 14'336);
}

TEST(ExpertsCostTest, WhatPublishedModelsNeed) {
  const auto needs = NeedsOf(ParsedModel(kQwen3Of30B), "H100", 85'520'809'984);
  ASSERT_EQ(needs.size(), 3U);
  EXPECT_EQ(needs[0].gpus, 1);
  EXPECT_GT(needs[0].memory_bytes, 17'000'000'000) << "more than its weights in 4 bits";
  EXPECT_LT(needs[0].memory_bytes, 40'000'000'000);
  EXPECT_GE(needs[1].gpus, 1);
  EXPECT_GE(needs[2].gpus, 4) << "30.5 billion weights, masters and states";
}

}  // namespace
}  // namespace sft::plan
