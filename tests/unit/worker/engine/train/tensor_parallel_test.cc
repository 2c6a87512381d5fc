#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "common/io/file.h"
#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "tests/unit/worker/engine/kernels/random_tensor.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/run_trainer.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/safetensors.h"
#include "worker/engine/data/step_plan.h"
#include "worker/engine/train/delivery.h"
#include "worker/engine/train/training_model.h"
#include "worker/engine/weights/tensor_cut.h"

// Whole runs of ranks that share the matrices against runs of the same rows on ranks that have them
// whole: the same curve, and the same weights in what is delivered.

namespace sft::engine {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

enum class Method { kFull, kLora, kQlora, kLora8bit };

// How the ranks of a run are laid out.
struct Ranks {
  int tensor = 1;
  int rows = 1;  // that take different ones
  spec::Sharding sharding = spec::Sharding::kDdp;
  int nodes = 1;

  std::string Name() const {
    return fmt::format("{} to a matrix, {} rows, sharding {}", tensor, rows,
                       static_cast<int>(sharding));
  }
};

class TensorParallelTest : public testing::Test {
 protected:
  TensorParallelTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string(info->test_suite_name()) + info->name();
    std::replace(name.begin(), name.end(), '/', '_');
    dir_ = std::filesystem::path(testing::TempDir()) / ("sft_" + name);
    std::filesystem::remove_all(dir_);
    WriteModel("");
  }
  ~TensorParallelTest() override { std::filesystem::remove_all(dir_); }

  // Four heads of 64, two of keys: so large that four ranks may have parts in 4 bits, and two of
  // them the same head of keys.
  void WriteModel(const std::string& extra) const {
    WriteTinyModel(
        dir_ / "model",
        TinyConfig(R"(, "hidden_size": 64, "head_dim": 64, "intermediate_size": 256)" + extra));
  }

  TrainerOptions Options(Method method, const Ranks& ranks) const {
    const int world = ranks.tensor * ranks.rows;
    const bool full = method == Method::kFull;
    TrainerOptions options =
        TinyRun(dir_ / "model", full ? spec::Mode::kFullFinetune : spec::Mode::kLora, world);
    spec::JobSpec& job = options.spec;
    job.lora.target_modules = {"all-linear"};
    job.training.use_qlora = method == Method::kQlora || method == Method::kLora8bit;
    job.quantization.bits = !job.training.use_qlora ? 0 : method == Method::kLora8bit ? 8 : 4;
    job.parallelism.sharding = ranks.sharding;
    job.parallelism.tensor_parallel_size = ranks.tensor;
    job.parallelism.ddp_bucket_cap_mb = 0.01;  // several buckets
    job.compute.nodes = ranks.nodes;
    job.compute.gpus_per_node = world / ranks.nodes;
    job.hyperparameters.per_device_batch = 4 / ranks.rows;
    job.hyperparameters.gradient_accumulation_steps = 2;
    job.hyperparameters.global_batch = 8;
    job.hyperparameters.max_steps = 5;
    job.hyperparameters.learning_rate = 1e-3;
    job.checkpoint.save_strategy = spec::SaveStrategy::kNo;
    // The last step of an epoch is short: ranks are left without rows.
    options.train = CountingRows(17);
    options.validation = CountingRows(9);
    job.training.validation.enabled = true;
    job.training.validation.eval_steps = 2;
    options.output_dir = dir_ / fmt::format("output-{}", ++outputs_);
    return options;
  }

  RecordingObserver Run(const TrainerOptions& options) const {
    const auto observers = RunTrainer(options, options.spec.compute.gpu_count);
    for (const RecordingObserver& other : observers) {
      EXPECT_EQ(other.Losses(), observers[0].Losses());
      EXPECT_TRUE(other.consistency.consistent);
    }
    return observers[0];
  }

  static std::map<std::string, Tensor> Delivered(const RecordingObserver& run) {
    std::map<std::string, Tensor> tensors;
    for (const auto& entry : std::filesystem::directory_iterator(run.artifacts.at(0).path)) {
      if (entry.path().extension() != ".safetensors") continue;
      const auto file = SafetensorsFile::Open(entry.path());
      for (const auto& [name, info] : file->tensors()) {
        tensors[name] = file->View(name).to(at::kDouble);
      }
    }
    return tensors;
  }

  static void ExpectSameCurve(const RecordingObserver& actual, const RecordingObserver& expected,
                              size_t before = 0) {
    ASSERT_EQ(actual.steps.size() + before, expected.steps.size());
    for (size_t i = 0; i < actual.steps.size(); ++i) {
      const StepReport &a = actual.steps[i], &b = expected.steps[i + before];
      EXPECT_NEAR(a.loss, b.loss, 1e-5 * b.loss) << b.step;
      EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-4 * b.grad_norm) << b.step;
      EXPECT_EQ(a.tokens, b.tokens) << b.step;
    }
    const std::map<std::string, Tensor> weights = Delivered(actual), whole = Delivered(expected);
    ASSERT_EQ(weights.size(), whole.size());
    double difference = 0, size = 0;
    for (const auto& [name, weight] : whole) {
      ASSERT_TRUE(weights.contains(name)) << name;
      ASSERT_EQ(weights.at(name).sizes(), weight.sizes()) << name;
      difference += (weights.at(name) - weight).square().sum().item<double>();
      size += weight.square().sum().item<double>();
    }
    // Whole models are delivered in bf16: some weights are rounded to the other side.
    const bool rounded = expected.artifacts[0].kind == "model";
    EXPECT_LT(std::sqrt(difference / size), rounded ? 2e-4 : 2e-5);
  }

  static void ExpectSameCurveAndEvals(const RecordingObserver& actual,
                                      const RecordingObserver& expected) {
    ExpectSameCurve(actual, expected);
    ASSERT_EQ(actual.evals.size(), expected.evals.size());
    for (size_t i = 0; i < expected.evals.size(); ++i) {
      EXPECT_NEAR(actual.evals[i].loss, expected.evals[i].loss, 1e-5 * expected.evals[i].loss);
    }
  }

  // Ranks that share matrices against one that has them; `change` is made to both jobs.
  void ExpectCurveOfOne(Method method, const Ranks& ranks,
                        const std::function<void(TrainerOptions&)>& change) const {
    SCOPED_TRACE(ranks.Name());
    TrainerOptions whole = Options(method, {}), cut = Options(method, ranks);
    change(whole);
    change(cut);
    ExpectSameCurveAndEvals(Run(cut), Run(whole));
  }

  static void ExpectSameBits(const RecordingObserver& actual, const RecordingObserver& expected) {
    ASSERT_EQ(actual.steps.size(), expected.steps.size());
    for (size_t i = 0; i < expected.steps.size(); ++i) {
      EXPECT_EQ(actual.steps[i].loss, expected.steps[i].loss) << i;
      EXPECT_EQ(actual.steps[i].grad_norm, expected.steps[i].grad_norm) << i;
    }
    EXPECT_EQ(actual.consistency.weights_sha256, expected.consistency.weights_sha256);
  }

  std::filesystem::path dir_;
  mutable std::atomic<int> outputs_ = 0;
};

// The gradients of a micro-batch at weights that are not zero, by position in the model's parts.
std::vector<Tensor> GradientsAt(TrainingModel& model, const TrainerOptions& options, double* norm) {
  const at::NoGradGuard no_grad;
  uint64_t seed = 0;
  model.SetTrained([&](const ParamInfo& param) { return Random(param.shape, ++seed) * 0.1; });
  StepPlanOptions plan_options = StepPlanOptions::FromSpec(options.spec);
  plan_options.world_size = 1;
  const StepPlan plan(options.train, plan_options);
  model.BeginStep();
  model.ForwardBackward(plan.GetMicroBatch(plan.GetStep(0), 0, 0), 0, 0, /*last=*/true);
  *norm = model.ReduceGradients(1.0);
  return model.gradients();
}

class TensorParallelMethodTest : public TensorParallelTest,
                                 public testing::WithParamInterface<Method> {};

constexpr Ranks kLayouts[] = {
    {2},
    {4},
    {2, 2},
    {2, 2, spec::Sharding::kZero1},
    {4, 2, spec::Sharding::kZero2},
    {2, 2, spec::Sharding::kFullShard},
    {4, 2, spec::Sharding::kFullShard},
    {2, 4, spec::Sharding::kHybridShard, 2},
};

TEST_P(TensorParallelMethodTest, EveryLayoutOfRanksHasTheCurveAndTheWeightsOfOne) {
  const RecordingObserver whole = Run(Options(GetParam(), {}));
  for (const Ranks& ranks : kLayouts) {
    SCOPED_TRACE(ranks.Name());
    ExpectSameCurveAndEvals(Run(Options(GetParam(), ranks)), whole);
  }
}

TEST_P(TensorParallelMethodTest, EachGradientIsThatOfOneRank) {
  WriteModel(R"(, "model_type": "qwen3", "attention_bias": true)");
  const TrainerOptions alone = Options(GetParam(), {});
  const auto comm = MakeLocalCommunicator(at::kCPU);
  TrainingModel whole(alone.spec, alone.model_dir, *comm);
  double expected_norm = 0;
  const std::vector<Tensor> expected = GradientsAt(whole, alone, &expected_norm);
  for (const int ranks : {2, 4}) {
    RunRanks(ranks, [&](Communicator& group) {
      const TrainerOptions options = Options(GetParam(), {ranks});
      TrainingModel model(options.spec, options.model_dir, group);
      double norm = 0;
      const std::vector<Tensor> gradients = GradientsAt(model, options, &norm);
      EXPECT_NEAR(norm, expected_norm, 1e-5 * expected_norm);
      ASSERT_EQ(gradients.size(), expected.size());
      for (size_t i = 0; i < gradients.size(); ++i) {
        const TrainablePart& part = model.store().parts()[i];
        const ParamInfo& param = model.own_layout().units[part.unit].params[part.param];
        const Tensor own = PartOf(param, expected[i]).view({-1});
        EXPECT_LT(RelativeError(gradients[i].view({-1}), own), 1e-4) << param.name;
      }
    });
  }
}

TEST_P(TensorParallelMethodTest, ACheckpointGoesOnWithAnyNumberOfRanks) {
  constexpr int64_t kSaved = 2;
  const auto save = [&](TrainerOptions options) {
    options.checkpoints.dir = dir_ / "saved";
    options.spec.checkpoint.save_strategy = spec::SaveStrategy::kSteps;
    options.spec.checkpoint.save_steps = static_cast<int>(kSaved);
    return options;
  };
  const Ranks one{}, two{2}, four{4}, shards{2, 2, spec::Sharding::kFullShard},
      zero{2, 2, spec::Sharding::kZero1}, rows{1, 2, spec::Sharding::kZero2};
  for (const auto& [from, to] : {std::pair(one, two),
                                 {two, one},
                                 {two, two},
                                 {four, shards},
                                 {shards, rows},
                                 {rows, zero},
                                 {shards, four}}) {
    SCOPED_TRACE(from.Name() + " to " + to.Name());
    std::filesystem::remove_all(dir_ / "saved");
    const RecordingObserver straight = Run(save(Options(GetParam(), from)));
    TrainerOptions second = Options(GetParam(), to);
    second.resume.dir = dir_ / "saved" / "step-2";
    const RecordingObserver resumed = Run(second);
    ExpectSameCurve(resumed, straight, kSaved);
    if (from.tensor == to.tensor && from.rows == to.rows) {
      EXPECT_EQ(resumed.consistency.weights_sha256, straight.consistency.weights_sha256);
    }
  }
}

TEST_P(TensorParallelMethodTest, ACheckpointIsDeliveredWithoutItsRanksAsTheyWouldDeliverIt) {
  for (const Ranks& ranks : {Ranks{4}, Ranks{2, 2, spec::Sharding::kFullShard}}) {
    SCOPED_TRACE(ranks.Name());
    TrainerOptions options = Options(GetParam(), ranks);
    options.checkpoints.dir = dir_ / "saved";
    options.spec.checkpoint.save_strategy = spec::SaveStrategy::kSteps;
    options.spec.checkpoint.save_steps = 5;
    Run(options);
    const std::filesystem::path made = dir_ / "made";
    DeliverCheckpoint(options.checkpoints.dir / "step-5",
                      {.target = made, .model_dir = dir_ / "model", .model_name = "tiny"}, "");
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(options.output_dir)) {
      const std::string name = entry.path().filename();
      EXPECT_EQ(io::ReadFile(made / name).value(), io::ReadFile(entry.path()).value()) << name;
      ++files;
    }
    EXPECT_GE(files, 2);
  }
}

// Masks are drawn anew by each recomputation, and are the same.
TEST_P(TensorParallelMethodTest, RecomputationAndASecondRunHaveTheSameBits) {
  for (const Ranks& ranks : {Ranks{2}, Ranks{2, 2, spec::Sharding::kFullShard}}) {
    SCOPED_TRACE(ranks.Name());
    TrainerOptions options = Options(GetParam(), ranks);
    options.spec.lora.dropout = 0.1;
    const RecordingObserver kept = Run(options);
    options.output_dir += "-again";
    ExpectSameBits(Run(options), kept);
    options.output_dir += "-recomputed";
    options.spec.parallelism.activation_checkpointing = true;
    ExpectSameBits(Run(options), kept);
  }
}

std::string NameOf(const testing::TestParamInfo<Method>& info) {
  static constexpr const char* kNames[] = {"Full", "Lora", "Qlora", "Lora8bit"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Methods, TensorParallelMethodTest,
                         testing::Values(Method::kFull, Method::kLora, Method::kQlora,
                                         Method::kLora8bit),
                         NameOf);

TEST_F(TensorParallelTest, ATableThatIsTheHeadToo) {
  WriteModel(", \"tie_word_embeddings\": true");
  for (const Method method : {Method::kFull, Method::kQlora}) {
    ExpectCurveOfOne(method, {2}, [](TrainerOptions&) {});
  }
}

TEST_F(TensorParallelTest, PackedRows) {
  ExpectCurveOfOne(Method::kLora, {4}, [](TrainerOptions& options) {
    options.spec.data.packing = true;
    options.spec.hyperparameters.sequence_length = 31;
  });
}

TEST_F(TensorParallelTest, AdaptersOfSomeLinearsOfUnlikeRanks) {
  ExpectCurveOfOne(Method::kLora, {2}, [](TrainerOptions& options) {
    options.spec.lora.target_modules = {"layers.1.self_attn.v_proj", "mlp.gate_proj",
                                        "layers.1.mlp.down_proj"};
    options.spec.lora.rank_pattern = {"gate_proj=7"};
  });
}

TEST_F(TensorParallelTest, BiasesAndModulesThatAreTrainedWhole) {
  WriteModel(R"(, "attention_bias": true, "mlp_bias": true)");
  ExpectCurveOfOne(Method::kFull, {4}, [](TrainerOptions&) {});
  ExpectCurveOfOne(Method::kLora, {4}, [](TrainerOptions& options) {
    options.spec.lora.target_modules = {"q_proj", "o_proj"};
    options.spec.lora.modules_to_save = {"lm_head", "embed_tokens"};
    options.spec.lora.bias = spec::Bias::kAll;
  });
}

// Adapters of a former job are cut as they are read.
TEST_F(TensorParallelTest, AnAdapterThatIsGivenIsTrainedOn) {
  const RecordingObserver former = Run(Options(Method::kLora, {2}));
  ExpectCurveOfOne(Method::kLora, {2}, [&](TrainerOptions& options) {
    options.adapter_dir = former.artifacts.at(0).path;
  });
}

TEST_F(TensorParallelTest, AModelThatCannotBeCutIsRefused) {
  try {
    Run(Options(Method::kLora, {3}));
    FAIL() << "4 heads over 3 ranks";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("hyperparameters.parallelism.tensor_parallel_size: 3 does "
                                        "not divide the model's 4 heads with 2 of keys; 2, 4 "
                                        "would do"));
  }
}

}  // namespace
}  // namespace sft::engine
