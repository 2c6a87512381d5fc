#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "common/io/file.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/run_trainer.h"
#include "worker/engine/base/error.h"
#include "worker/engine/train/delivery.h"

// A run that goes on from a checkpoint against one that was never interrupted: the same bits on the
// same ranks, the same curve on others.

namespace sft::engine {
namespace {

constexpr int64_t kSaved = 3;  // of six steps
constexpr double kTolerance = 1e-5;
// Other ranks have other tokens in a micro-batch, whose columns share a scale in FP8.
constexpr double kToleranceFp8 = 2e-3;

enum class Base { kFull, kFullFp8, kLora, kQlora, kLora8bit };
bool IsFull(Base base) { return base == Base::kFull || base == Base::kFullFp8; }

struct Layout {
  const char* name;
  spec::Sharding sharding;
  int world;
  int nodes = 1;
};

constexpr Layout kOne = {"one", spec::Sharding::kDdp, 1};
constexpr Layout kLayouts[] = {
    kOne,
    {"ddp", spec::Sharding::kDdp, 2},
    {"zero1", spec::Sharding::kZero1, 2},
    {"zero2_three", spec::Sharding::kZero2, 3},
    {"full_shard_four", spec::Sharding::kFullShard, 4},
    {"hybrid_shard", spec::Sharding::kHybridShard, 4, 2},
};

class ResumeTest : public testing::TestWithParam<Base> {
 protected:
  ResumeTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string(info->test_suite_name()) + info->name();
    std::replace(name.begin(), name.end(), '/', '_');
    dir_ = std::filesystem::path(testing::TempDir()) / ("sft_" + name);
    std::filesystem::remove_all(dir_);
    WriteTinyModel(dir_ / "model");
  }
  ~ResumeTest() override { std::filesystem::remove_all(dir_); }

  // Twelve rows a step however the ranks divide them.
  TrainerOptions Options(const Layout& layout) const {
    const bool full = IsFull(GetParam());
    TrainerOptions options =
        TinyRun(dir_ / "model", full ? spec::Mode::kFullFinetune : spec::Mode::kLora, layout.world);
    spec::JobSpec& job = options.spec;
    if (GetParam() == Base::kFullFp8) job.training.matmul = spec::Matmul::kFp8;
    job.training.use_qlora = GetParam() == Base::kQlora || GetParam() == Base::kLora8bit;
    job.quantization.bits = !job.training.use_qlora ? 0 : GetParam() == Base::kLora8bit ? 8 : 4;
    job.parallelism.sharding = layout.sharding;
    job.compute.nodes = layout.nodes;
    job.compute.gpus_per_node = layout.world / layout.nodes;
    job.hyperparameters.per_device_batch = 12 / layout.world;
    job.hyperparameters.global_batch = 12;
    job.checkpoint.save_strategy = spec::SaveStrategy::kNo;
    options.train = CountingRows(30);
    return options;
  }

  static void SaveInto(const std::filesystem::path& dir, TrainerOptions& options) {
    options.checkpoints.dir = dir;
    options.spec.checkpoint.save_strategy = spec::SaveStrategy::kSteps;
    options.spec.checkpoint.save_steps = kSaved;
  }

  std::filesystem::path Saved() const { return dir_ / "checkpoints" / "step-3"; }

  RecordingObserver Run(const TrainerOptions& options) const {
    return RunTrainer(options, options.spec.compute.gpu_count)[0];
  }

  // Runs through, saving on the way, and once more from what was saved.
  struct Both {
    RecordingObserver straight, resumed;
  };
  Both RunBoth(TrainerOptions options) const {
    SaveInto(Saved().parent_path(), options);
    Both both{Run(options), {}};
    options.checkpoints = {};
    options.resume.dir = Saved();
    both.resumed = Run(options);
    return both;
  }

  static void ExpectSameBits(const Both& both) {
    ASSERT_EQ(both.straight.steps.size(), 6u);
    ASSERT_EQ(both.resumed.steps.size(), 3u) << both.straight.messages;
    for (size_t i = 0; i < 3; ++i) {
      const StepReport &a = both.straight.steps[i + 3], &b = both.resumed.steps[i];
      EXPECT_EQ(b.step, a.step);
      EXPECT_EQ(b.loss, a.loss) << a.step;
      EXPECT_EQ(b.grad_norm, a.grad_norm) << a.step;
      EXPECT_EQ(b.lr, a.lr);
      EXPECT_EQ(b.epoch, a.epoch);
      EXPECT_EQ(b.total_steps, a.total_steps);
    }
    EXPECT_TRUE(both.resumed.consistency.consistent);
    EXPECT_EQ(both.resumed.consistency.weights_sha256, both.straight.consistency.weights_sha256);
  }

  std::filesystem::path dir_;
};

TEST_P(ResumeTest, TheSameRanksGoOnWithTheSameBits) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    const Both both = RunBoth(Options(layout));
    ExpectSameBits(both);
    ASSERT_EQ(both.resumed.resumed.size(), 1u);
    EXPECT_EQ(both.resumed.resumed[0].step, kSaved);
    EXPECT_EQ(both.resumed.resumed[0].path, Saved().string());
    EXPECT_THAT(both.resumed.resumed[0].changes, testing::IsEmpty());
  }
}

TEST_P(ResumeTest, OtherRanksAndShardingsGoOnWithTheSameCurve) {
  for (const Layout& from : {kLayouts[1], kLayouts[3], kLayouts[5]}) {
    TrainerOptions first = Options(from);
    SaveInto(Saved().parent_path(), first);
    const std::vector<double> expected = Run(first).Losses();
    for (const Layout& to : kLayouts) {
      SCOPED_TRACE(std::string(from.name) + " to " + to.name);
      TrainerOptions second = Options(to);
      second.resume.dir = Saved();
      const std::vector<double> losses = Run(second).Losses();
      ASSERT_EQ(losses.size(), 3u);
      const double tolerance = GetParam() == Base::kFullFp8 ? kToleranceFp8 : kTolerance;
      for (size_t i = 0; i < losses.size(); ++i) {
        EXPECT_NEAR(losses[i], expected[i + 3], tolerance * expected[i + 3]) << i + 4;
      }
    }
  }
}

// The checkpoint of the last step and the result are of the same weights: so are their files.
TEST_P(ResumeTest, ACheckpointIsDeliveredWithoutItsRanksAsTheyWouldDeliverIt) {
  for (const Layout& layout : {kLayouts[0], kLayouts[3], kLayouts[4]}) {
    SCOPED_TRACE(layout.name);
    TrainerOptions options = Options(layout);
    options.spec.lora.rank_pattern = {"q_proj=2"};
    options.spec.lora.bias = spec::Bias::kLoraOnly;
    SaveInto(Saved().parent_path(), options);
    Run(options);
    const std::filesystem::path made = dir_ / "made";
    const CheckpointDelivery delivery =
        DeliverCheckpoint(Saved().parent_path() / "step-6",
                          {.target = made, .model_dir = dir_ / "model", .model_name = "tiny"}, "");
    EXPECT_EQ(delivery.full_model, IsFull(GetParam()));
    EXPECT_EQ(delivery.step, 6);
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(options.output_dir)) {
      const std::string name = entry.path().filename();
      EXPECT_EQ(io::ReadFile(made / name).value(), io::ReadFile(entry.path()).value()) << name;
      ++files;
    }
    EXPECT_GE(files, 2);
    const CheckpointDelivery earlier =
        DeliverCheckpoint(Saved(), {.target = made, .model_dir = dir_ / "model"}, "");
    EXPECT_EQ(earlier.step, kSaved);
    const char* weights = delivery.full_model ? "model.safetensors" : "adapter_model.safetensors";
    EXPECT_NE(io::ReadFile(made / weights).value(),
              io::ReadFile(options.output_dir / weights).value());
  }
}

TEST_P(ResumeTest, ACheckpointIsNotDeliveredOnAnotherBase) {
  TrainerOptions options = Options(kOne);
  SaveInto(Saved().parent_path(), options);
  Run(options);
  WriteTinyModel(dir_ / "other", TinyConfig() + " ");
  try {
    DeliverCheckpoint(Saved(), {.target = dir_ / "made", .model_dir = dir_ / "other"}, "");
    FAIL() << "taken";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), "checkpoint_mismatch");
    EXPECT_THAT(error.what(),
                testing::HasSubstr("the model's config.json is other than the checkpoint's"));
  }
}

TEST_P(ResumeTest, SavingChangesNoBit) {
  TrainerOptions options = Options(kLayouts[2]);
  options.spec.lora.dropout = 0.1;
  const RecordingObserver without = Run(options);
  SaveInto(Saved().parent_path(), options);
  options.spec.checkpoint.save_steps = 1;
  const RecordingObserver with = Run(options);
  EXPECT_EQ(with.Losses(), without.Losses());
  EXPECT_EQ(with.consistency.weights_sha256, without.consistency.weights_sha256);
  EXPECT_THAT(with.checkpoints, testing::Not(testing::IsEmpty()));
}

TEST_P(ResumeTest, EveryOptimizerGoesOnWithTheSameBits) {
  for (const spec::Optimizer optimizer :
       {spec::Optimizer::kAdamWBf16, spec::Optimizer::kAdamW8bit}) {
    for (const spec::MasterWeights master :
         {spec::MasterWeights::kFp32, spec::MasterWeights::kBf16}) {
      SCOPED_TRACE(static_cast<int>(optimizer) * 10 + static_cast<int>(master));
      TrainerOptions options = Options(kLayouts[3]);
      options.spec.hyperparameters.optimizer = optimizer;
      options.spec.hyperparameters.master_weights = master;
      options.spec.hyperparameters.weight_decay = 0.1;
      options.spec.lora.dropout = 0.1;
      ExpectSameBits(RunBoth(options));
    }
  }
}

TEST_P(ResumeTest, AnOptimizerOnTheHostGoesOnWithTheSameBitsAndFitsOneOnTheDevice) {
  TrainerOptions options = Options(kLayouts[4]);
  options.spec.parallelism.compute_type = spec::ComputeType::kBf16;
  options.execution = plan::Unplanned(options.spec, plan::Device::kCpu);
  options.execution->optimizer_on_host = true;
  const Both both = RunBoth(options);
  ExpectSameBits(both);
  options.execution->optimizer_on_host = false;
  options.resume.dir = Saved();
  EXPECT_EQ(Run(options).Losses(), both.resumed.Losses());
}

TEST_P(ResumeTest, NoiseAndRatesOfTheirOwnGoOnWithTheSameBits) {
  for (const Layout& layout : {kLayouts[1], kLayouts[4]}) {
    SCOPED_TRACE(layout.name);
    TrainerOptions options = Options(layout);
    const std::vector<double> plain = Run(options).Losses();
    options.spec.hyperparameters.neftune_noise_alpha = 5.0;
    options.spec.lora.loraplus_lr_ratio = 4.0;
    const Both both = RunBoth(options);
    ExpectSameBits(both);
    EXPECT_NE(both.straight.steps[0].loss, plain[0]);
  }
}

// What was recorded before the checkpoint runs without a recording after it, at first.
TEST_P(ResumeTest, RecordedBlocksGoOnWithTheSameBits) {
  TrainerOptions options = Options(kOne);
  options.spec.hyperparameters.per_device_batch = 6;
  options.spec.hyperparameters.gradient_accumulation_steps = 2;
  options.execution = plan::ExecutionPlan{.kept = 2, .graphs = true};
  ExpectSameBits(RunBoth(options));
}

// Adapters that are more than two factors.
class VariantsTest : public ResumeTest {};

TEST_P(VariantsTest, EveryStrategyTrainsTheSameAndGoesOnWithTheSameBits) {
  std::vector<double> losses;
  for (const Layout& layout : {kOne, kLayouts[3], kLayouts[5]}) {
    SCOPED_TRACE(layout.name);
    TrainerOptions options = Options(layout);
    const std::vector<double> plain = Run(options).Losses();
    options.spec.hyperparameters.embedding_learning_rate = 1e-3;
    options.spec.lora.loraplus_lr_ratio = 4.0;
    options.spec.lora.modules_to_save = {"embed_tokens", "lm_head", "norm"};
    options.spec.lora.use_dora = true;
    const Both both = RunBoth(options);
    ExpectSameBits(both);
    if (losses.empty()) losses = both.straight.Losses();
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(both.straight.steps[i].loss, losses[i], kTolerance * losses[i]) << i + 1;
    }
    EXPECT_LT(both.straight.steps[5].loss, plain[5]) << "what is trained beside does nothing";
  }
}

TEST_P(VariantsTest, TheyRunOnAnOptimizerOfTheHostWithDropoutAndRecomputation) {
  TrainerOptions options = Options(kLayouts[4]);
  options.spec.lora.modules_to_save = {"embed_tokens", "model.norm"};
  options.spec.lora.use_dora = true;
  options.spec.lora.dropout = 0.1;
  options.execution = plan::Unplanned(options.spec, plan::Device::kCpu);
  options.execution->deep = options.execution->shallow = plan::Recompute::kNothing;
  const std::vector<double> plain = Run(options).Losses();
  options.execution->optimizer_on_host = true;
  options.execution->deep = options.execution->shallow = plan::Recompute::kAll;
  const Both both = RunBoth(options);
  ExpectSameBits(both);
  EXPECT_EQ(both.straight.Losses(), plain);
}

std::string NameOf(Base base) {
  switch (base) {
    case Base::kFull:
      return "Full";
    case Base::kFullFp8:
      return "FullFp8";
    case Base::kLora:
      return "Lora";
    case Base::kQlora:
      return "Qlora";
    case Base::kLora8bit:
      return "Lora8bit";
  }
  return "";
}

void PrintTo(Base base, std::ostream* out) { *out << NameOf(base); }

INSTANTIATE_TEST_SUITE_P(Bases, ResumeTest,
                         testing::Values(Base::kFull, Base::kFullFp8, Base::kLora, Base::kQlora,
                                         Base::kLora8bit),
                         [](const auto& info) { return NameOf(info.param); });

INSTANTIATE_TEST_SUITE_P(Bases, VariantsTest,
                         testing::Values(Base::kLora, Base::kQlora, Base::kLora8bit),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace sft::engine
