#include "worker/engine/train/trainer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "common/spec/visit.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/run_trainer.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/checkpoint/safetensors.h"
#include "worker/engine/generate/generator.h"

namespace sft::engine {
namespace {

using at::Tensor;

class TrainerTest : public testing::Test {
 protected:
  TrainerTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = std::filesystem::path(testing::TempDir()) / (std::string("sft_trainer_") + info->name());
    std::filesystem::remove_all(dir_);
    WriteTinyModel(model_dir());
  }
  ~TrainerTest() override { std::filesystem::remove_all(dir_); }

  std::filesystem::path model_dir() const { return dir_ / "model"; }
  std::filesystem::path output_dir() const { return dir_ / "output"; }

  static std::shared_ptr<const Dataset> Rows(int count) { return CountingRows(count); }

  TrainerOptions Options(spec::Mode mode, int world) const {
    return TinyRun(model_dir(), mode, world);
  }

  RecordingObserver RunOne(const TrainerOptions& options, int64_t stop_after = -1) {
    RecordingObserver observer;
    observer.stop_after = stop_after;
    const auto comm = MakeLocalCommunicator(at::kCPU);
    Trainer trainer(options, *comm, observer);
    result_ = trainer.Run();
    return observer;
  }

  std::filesystem::path dir_;
  TrainResult result_;
};

TEST_F(TrainerTest, LoraRunReportsEveryStepAndDeliversAnAdapterThatGeneratorReads) {
  const RecordingObserver observer = RunOne(Options(spec::Mode::kLora, 1));
  EXPECT_EQ(observer.ready.total_steps, 6);
  ASSERT_EQ(observer.steps.size(), 6u);
  EXPECT_LT(observer.steps.back().loss, observer.steps.front().loss);
  for (const StepReport& step : observer.steps) {
    EXPECT_GT(step.loss, 0);
    EXPECT_GT(step.tokens, 0);
    EXPECT_GT(step.grad_norm, 0);
    EXPECT_GT(step.memory_bytes, 0);
  }
  EXPECT_TRUE(observer.consistency.consistent);
  ASSERT_EQ(observer.artifacts.size(), 1u);
  EXPECT_EQ(observer.artifacts[0].kind, "adapter");
  const Adapter adapter = ReadAdapter(output_dir());
  EXPECT_EQ(adapter.pairs.size(), 14u);
  for (const LoraPair& pair : adapter.pairs) EXPECT_GT(pair.b.abs().max().item<float>(), 0.0f);
  Generator generator({.model_dir = model_dir(), .adapter_dir = output_dir()});
  EXPECT_EQ(generator.Generate(std::vector<int32_t>{1, 2, 3}, 4, {}).size(), 4u);
}

TEST_F(TrainerTest, TokensWithoutLossDoNotDiluteTheGradient) {
  TrainerOptions options = Options(spec::Mode::kLora, 1);
  options.spec.hyperparameters.max_steps = 1;
  options.train = Dataset::FromDocuments({{1, 2, 3}, {4, 5, 6}}, {{0, 1, 1}, {0, 1, 1}});
  const StepReport alone = RunOne(options).steps.at(0);
  // What follows the learnt tokens changes nothing about them.
  options.train = Dataset::FromDocuments({{1, 2, 3, 9, 9, 9, 9, 9}, {4, 5, 6, 9, 9, 9, 9, 9}},
                                         {{0, 1, 1, 0, 0, 0, 0, 0}, {0, 1, 1, 0, 0, 0, 0, 0}});
  const StepReport longer = RunOne(options).steps.at(0);
  EXPECT_GT(longer.tokens, alone.tokens);
  EXPECT_NEAR(longer.loss, alone.loss, 1e-5 * alone.loss);
  EXPECT_NEAR(longer.grad_norm, alone.grad_norm, 1e-5 * alone.grad_norm);
}

TEST_F(TrainerTest, EachRankReportsTheLossOfItsOwnRows) {
  // A row each with as many targets: the mean of both is the step's loss.
  TrainerOptions options = Options(spec::Mode::kLora, 2);
  options.spec.hyperparameters.per_device_batch = 1;
  options.spec.hyperparameters.global_batch = 2;
  options.spec.hyperparameters.max_steps = 1;
  options.train = Dataset::FromDocuments({{1, 2, 3}, {9, 8, 7}}, {{0, 1, 1}, {0, 1, 1}});
  const auto ranks = RunTrainer(options, 2);
  const StepReport &first = ranks[0].steps.at(0), &second = ranks[1].steps.at(0);
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_GT(std::abs(first.rank_loss - second.rank_loss), 1e-3);
  EXPECT_NEAR((first.rank_loss + second.rank_loss) / 2, first.loss, 1e-6);
  // Of one row for two ranks the other has none.
  options.train = Dataset::FromDocuments({{1, 2, 3}}, {{0, 1, 1}});
  const auto lone = RunTrainer(options, 2);
  EXPECT_NEAR(lone[0].steps.at(0).rank_loss, lone[0].steps.at(0).loss, 1e-9);
  EXPECT_TRUE(std::isnan(lone[1].steps.at(0).rank_loss));
}

TEST_F(TrainerTest, FullShardGathersWhatIsDelivered) {
  TrainerOptions options = Options(spec::Mode::kFullFinetune, 3);
  options.spec.parallelism.sharding = spec::Sharding::kFullShard;
  for (const RecordingObserver& observer : RunTrainer(options, 3)) {
    EXPECT_TRUE(observer.consistency.consistent);
    EXPECT_EQ(observer.consistency.weights_sha256, observer.consistency.delivered_sha256);
  }
  const ModelFiles before = ModelFiles::Open(model_dir()), after = ModelFiles::Open(output_dir());
  EXPECT_EQ(before.Names(), after.Names());
  for (const std::string& name : before.Names()) {
    EXPECT_FALSE(at::equal(before.View(name).to(at::kFloat), after.View(name))) << name;
  }
}

TEST_F(TrainerTest, ReplicasOfAShardedOptimizerAreEqualOnAllRanks) {
  for (const auto sharding : {spec::Sharding::kZero1, spec::Sharding::kZero2}) {
    TrainerOptions options = Options(spec::Mode::kLora, 2);
    options.output_dir = dir_ / spec::EnumName(sharding);
    options.spec.training.use_qlora = true;
    options.spec.parallelism.sharding = sharding;
    const auto observers = RunTrainer(options, 2);
    EXPECT_TRUE(observers[0].consistency.consistent);
    EXPECT_EQ(observers[0].consistency.weights_sha256, observers[1].consistency.weights_sha256);
    EXPECT_EQ(observers[0].artifacts.size(), 1u);
    EXPECT_EQ(observers[1].artifacts.size(), 0u);
    for (size_t i = 0; i < observers[0].steps.size(); ++i) {
      EXPECT_EQ(observers[0].steps[i].loss, observers[1].steps[i].loss);
    }
  }
}

TEST_F(TrainerTest, NodesOfHybridShardHoldTheSameBits) {
  TrainerOptions options = Options(spec::Mode::kFullFinetune, 4);
  options.spec.compute.nodes = 2;
  options.spec.compute.gpus_per_node = 2;
  options.spec.parallelism.sharding = spec::Sharding::kHybridShard;
  options.spec.parallelism.compute_type = spec::ComputeType::kBf16;
  const auto observers = RunTrainer(options, 4);
  for (const RecordingObserver& observer : observers) {
    EXPECT_TRUE(observer.consistency.consistent);
    EXPECT_EQ(observer.consistency.weights_sha256, observers[0].consistency.weights_sha256);
  }
  EXPECT_LT(observers[0].steps.back().loss, observers[0].steps.front().loss);
}

// The first step's loss is of the same weights; later ones follow gradients that were rounded for
// the way, to 1 part in 256 an element.
TEST_F(TrainerTest, GradientsSentInBf16GiveTheCurveOfThoseSentInFp32) {
  TrainerOptions options = Options(spec::Mode::kFullFinetune, 2);
  options.spec.parallelism.compute_type = spec::ComputeType::kBf16;
  options.spec.hyperparameters.learning_rate = 1e-3;
  options.spec.parallelism.sharding = spec::Sharding::kZero2;
  options.output_dir = dir_ / "fp32";
  const auto fp32 = RunTrainer(options, 2)[0].steps;
  options.spec.parallelism.sharding = spec::Sharding::kFullShard;
  options.output_dir = dir_ / "bf16";
  const auto bf16 = RunTrainer(options, 2)[0].steps;
  ASSERT_EQ(fp32.size(), bf16.size());
  EXPECT_EQ(fp32[0].loss, bf16[0].loss);
  for (size_t i = 0; i < fp32.size(); ++i) {
    EXPECT_NEAR(bf16[i].loss, fp32[i].loss, 5e-3 * fp32[i].loss) << i;
    EXPECT_NEAR(bf16[i].grad_norm, fp32[i].grad_norm, 1e-2 * fp32[i].grad_norm) << i;
  }
}

TEST_F(TrainerTest, ComputesInBf16WithFp32MasterWeights) {
  TrainerOptions options = Options(spec::Mode::kFullFinetune, 2);
  options.spec.parallelism.compute_type = spec::ComputeType::kBf16;
  options.spec.parallelism.sharding = spec::Sharding::kZero2;
  const auto observers = RunTrainer(options, 2);
  EXPECT_LT(observers[0].steps.back().loss, observers[0].steps.front().loss);
  EXPECT_TRUE(observers[0].consistency.consistent);
  EXPECT_EQ(ModelFiles::Open(output_dir()).Info("model.norm.weight").dtype, at::kBFloat16);
}

void ExpectTheSame(const RecordingObserver& actual, const RecordingObserver& expected) {
  ASSERT_EQ(actual.steps.size(), expected.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_EQ(actual.steps[i].loss, expected.steps[i].loss) << i;
    EXPECT_EQ(actual.steps[i].grad_norm, expected.steps[i].grad_norm) << i;
  }
  ASSERT_EQ(actual.evals.size(), expected.evals.size());
  for (size_t i = 0; i < expected.evals.size(); ++i) {
    EXPECT_EQ(actual.evals[i].loss, expected.evals[i].loss) << i;
  }
  EXPECT_EQ(actual.consistency.consistent, expected.consistency.consistent);
  EXPECT_EQ(actual.consistency.weights_sha256, expected.consistency.weights_sha256);
}

// What a rank of a GPU does with offload_optimizer, its device the CPU: steps that are done when
// their weights are wanted are done for validation, for the best weights and for the artifact too.
TEST_F(TrainerTest, AnOptimizerOnTheHostValidatesAndDeliversTheSameBits) {
  for (const spec::Mode mode : {spec::Mode::kFullFinetune, spec::Mode::kLora}) {
    TrainerOptions options = Options(mode, 1);
    options.validation = Rows(5);
    options.spec.training.validation.enabled = true;
    options.spec.training.validation.eval_steps = 2;
    options.spec.training.validation.save_best_model_at_end = true;
    options.spec.parallelism.offload_optimizer = true;
    const RecordingObserver plain = RunOne(options);
    for (const bool blocks : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(mode) << " blocks " << blocks);
      options.execution = plan::ExecutionPlan{.optimizer_on_host = true, .blocks_on_host = blocks};
      ExpectTheSame(RunOne(options), plain);
      options.execution.reset();
    }
  }
}

// DoRA's gains are worked out from the magnitudes' masters, which the host has updated by then.
TEST_F(TrainerTest, DoraWithAnOptimizerOnTheHostGivesTheSameBitsUnderEveryPlacement) {
  for (const int ranks : {1, 2}) {
    for (const spec::Sharding sharding :
         {spec::Sharding::kDdp, spec::Sharding::kZero2, spec::Sharding::kFullShard}) {
      if (ranks == 1 && sharding != spec::Sharding::kDdp) continue;
      SCOPED_TRACE(testing::Message() << ranks << " " << static_cast<int>(sharding));
      TrainerOptions options = Options(spec::Mode::kLora, ranks);
      options.spec.lora.use_dora = true;
      options.spec.parallelism.sharding = sharding;
      options.spec.parallelism.offload_optimizer = true;
      const auto plain = RunTrainer(options, ranks);
      options.execution = plan::ExecutionPlan{.optimizer_on_host = true};
      const auto host = RunTrainer(options, ranks);
      for (int rank = 0; rank < ranks; ++rank) ExpectTheSame(host[rank], plain[rank]);
    }
  }
}

// What a rank of a GPU does with offload_param: weights of blocks, frozen or trained, whole or cut
// over the ranks, come from its host's memory.
TEST_F(TrainerTest, BlocksOnTheHostGiveTheSameBitsUnderEveryPlacement) {
  for (const spec::Mode mode : {spec::Mode::kFullFinetune, spec::Mode::kLora}) {
    for (const spec::Sharding sharding : {spec::Sharding::kDdp, spec::Sharding::kFullShard}) {
      for (const bool quantized : {false, true}) {
        if (quantized && mode == spec::Mode::kFullFinetune) continue;
        SCOPED_TRACE(testing::Message() << static_cast<int>(mode) << " "
                                        << static_cast<int>(sharding) << " " << quantized);
        TrainerOptions options = Options(mode, 2);
        options.spec.parallelism.sharding = sharding;
        options.spec.training.use_qlora = quantized;
        options.spec.quantization.bits = quantized ? 4 : 0;
        const auto plain = RunTrainer(options, 2);
        const bool full = mode == spec::Mode::kFullFinetune;
        options.execution = plan::ExecutionPlan{.optimizer_on_host = full, .blocks_on_host = true};
        const auto host = RunTrainer(options, 2);
        for (size_t rank = 0; rank < 2; ++rank) ExpectTheSame(host[rank], plain[rank]);
      }
    }
  }
}

TEST_F(TrainerTest, ValidatesBeforeTheFirstStepEveryEvalStepsAndAtTheEnd) {
  TrainerOptions options = Options(spec::Mode::kLora, 1);
  options.validation = Rows(5);
  options.spec.training.validation.enabled = true;
  options.spec.training.validation.eval_steps = 4;
  const RecordingObserver observer = RunOne(options);
  ASSERT_EQ(observer.evals.size(), 3u);
  EXPECT_EQ(observer.evals[0].step, 0);
  EXPECT_EQ(observer.evals[1].step, 4);
  EXPECT_EQ(observer.evals[2].step, 6);
  EXPECT_LT(observer.evals[2].loss, observer.evals[0].loss);
}

TEST_F(TrainerTest, ValidationWithoutRowsIsRefused) {
  TrainerOptions options = Options(spec::Mode::kLora, 1);
  options.spec.training.validation.enabled = true;
  EXPECT_THROW(RunOne(options), UserError);
}

TEST_F(TrainerTest, KeepsTheBestWeightsWhenAsked) {
  TrainerOptions options = Options(spec::Mode::kLora, 1);
  options.validation = Rows(5);
  options.spec.training.validation.enabled = true;
  options.spec.training.validation.eval_steps = 1;
  options.spec.training.validation.save_best_model_at_end = true;
  options.spec.training.validation.greater_is_better = true;  // so the first step wins
  RunOne(options);
  const Tensor best = ReadAdapter(output_dir()).pairs[0].b.clone();
  options.spec.hyperparameters.lr_scheduler.kind = spec::LrScheduler::kCosine;
  options.spec.training.validation.save_best_model_at_end = false;
  RunOne(options);
  EXPECT_GT(ReadAdapter(output_dir()).pairs[0].b.norm().item<float>(), best.norm().item<float>());
}

TEST_F(TrainerTest, StopEndsBetweenStepsAndDeliversNothing) {
  const RecordingObserver observer = RunOne(Options(spec::Mode::kLora, 1), /*stop_after=*/3);
  EXPECT_TRUE(result_.stopped);
  EXPECT_EQ(result_.steps, 3);
  EXPECT_EQ(observer.steps.size(), 3u);
  EXPECT_FALSE(std::filesystem::exists(output_dir()));
}

TEST_F(TrainerTest, LossThatIsNotFiniteStopsAndSaysWhere) {
  TrainerOptions options = Options(spec::Mode::kLora, 1);
  options.spec.hyperparameters.learning_rate = 1e30;
  options.spec.hyperparameters.warmup_ratio = 0;
  options.spec.hyperparameters.max_grad_norm = 0;
  try {
    RunOne(options);
    FAIL() << "trained on";
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), "nan_loss");
    EXPECT_NE(message.find("of step "), std::string::npos) << message;
    EXPECT_NE(message.find("rank 0 in the rows of line"), std::string::npos) << message;
    EXPECT_NE(error.advice().find("learning_rate"), std::string::npos);
  }
  EXPECT_FALSE(std::filesystem::exists(output_dir()));
}

TEST_F(TrainerTest, WeightsThatContradictTheConfigurationAreRefused) {
  const auto refusal = [&](const std::string& extra) {
    std::filesystem::remove(model_dir() / "config.json");
    std::ofstream(model_dir() / "config.json") << TinyConfig(extra);
    try {
      RunOne(Options(spec::Mode::kLora, 1));
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(refusal(R"(, "attention_bias": true)").find("q_proj.bias"), std::string::npos);
  EXPECT_NE(refusal(R"(, "head_dim": 16)").find("has shape"), std::string::npos);
  EXPECT_NE(refusal(R"(, "tie_word_embeddings": true)").find("lm_head.weight that differs from"),
            std::string::npos);
}

}  // namespace
}  // namespace sft::engine
