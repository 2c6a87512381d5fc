// Full fine-tuning whose products are in FP8: near the plain one, and the same bits by any plan.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/documents.h"
#include "worker/engine/base/error.h"
#include "worker/engine/optim/grad_norm.h"
#include "worker/engine/train/training_model.h"

namespace sft::engine {
namespace {

using at::Tensor;
using plan::Recompute;
using spec::Matmul;

constexpr int kFp8MicroBatches = 2;
constexpr int kFp8Layers = 2;
constexpr double kFp8Rate = 5e-3;

struct Fp8Curve {
  std::vector<double> losses, norms;
  std::vector<Tensor> gradients;  // of the first step
  std::vector<std::string> names;
  std::vector<Tensor> masters;  // after the last
};

class Fp8TrainingTest : public testing::Test {
 protected:
  static spec::JobSpec Job(Matmul matmul) {
    spec::JobSpec job;
    job.training.mode = spec::Mode::kFullFinetune;
    job.training.matmul = matmul;
    job.quantization.bits = 0;
    return job;
  }

  // Tokens of a micro-batch are no multiple of 16.
  Fp8Curve Train(const spec::JobSpec& job, int steps, const plan::ExecutionPlan& run = {}) const {
    const at::NoGradGuard no_grad;
    const auto comm = MakeLocalCommunicator(at::kCPU);
    TrainingModel model(job, dir_.path(), *comm, run);
    Fp8Curve curve;
    for (int step = 0; step < steps; ++step) {
      model.BeginStep();
      double sum = 0;
      int64_t targets = 0;
      for (int micro = 0; micro < kFp8MicroBatches; ++micro) {
        const MicroBatch batch = Documents({17, 5, 11 + micro}, step % 5 + micro, kTinyVocabulary);
        targets += static_cast<int64_t>(batch.loss_rows.size());
        sum +=
            model.ForwardBackward(batch, step, micro, micro + 1 == kFp8MicroBatches).item<double>();
      }
      const double scale = 1.0 / static_cast<double>(targets);
      curve.losses.push_back(sum * scale);
      curve.norms.push_back(model.ReduceGradients(scale));
      if (step == 0) {
        for (const Tensor& gradient : model.gradients())
          curve.gradients.push_back(gradient.clone());
      }
      model.Update(kFp8Rate, scale * ClipFactor(curve.norms.back(), 1.0));
    }
    for (const TrainablePart& part : model.store().parts()) {
      curve.names.push_back(model.layout().units[part.unit].params[part.param].name);
      curve.masters.push_back(part.master.clone());
    }
    return curve;
  }

  static double Error(const Tensor& actual, const Tensor& expected) {
    return ((actual - expected).norm() / expected.norm()).item<double>();
  }

  static void ExpectSameBits(const Fp8Curve& a, const Fp8Curve& b) {
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.norms, b.norms);
    for (size_t i = 0; i < a.masters.size(); ++i) {
      EXPECT_TRUE(at::equal(a.masters[i], b.masters[i])) << a.names[i];
    }
  }

  void SetUp() override { WriteTinyModel(dir_.path()); }

  TempDir dir_;
};

constexpr Matmul kRecipes[] = {Matmul::kFp8, Matmul::kFp8Bf16Wgrad};

TEST_F(Fp8TrainingTest, GradientsAreNearThoseOfPlainProducts) {
  const Fp8Curve plain = Train(Job(Matmul::kBf16), 1);
  for (const Matmul recipe : kRecipes) {
    const Fp8Curve fp8 = Train(Job(recipe), 1);
    EXPECT_NEAR(fp8.losses[0], plain.losses[0], 0.01 * plain.losses[0]);
    EXPECT_NE(fp8.losses[0], plain.losses[0]);
    for (size_t i = 0; i < plain.gradients.size(); ++i) {
      const double error = Error(fp8.gradients[i], plain.gradients[i]);
      EXPECT_LT(error, 0.15) << fp8.names[i];
      EXPECT_GT(error, 1e-4) << fp8.names[i] << " is not made of FP8 products";
    }
  }
}

// The last down projection reads the same rows in both, so its gradient tells the recipes apart.
TEST_F(Fp8TrainingTest, WeightGradientsAreInFp8WhereTheRecipeSaysSo) {
  const Fp8Curve all = Train(Job(Matmul::kFp8), 1), others = Train(Job(Matmul::kFp8Bf16Wgrad), 1);
  EXPECT_EQ(all.losses, others.losses);
  for (size_t i = 0; i < all.names.size(); ++i) {
    const bool linear = all.names[i].ends_with("proj.weight");
    EXPECT_EQ(!linear, at::equal(all.gradients[i], others.gradients[i])) << all.names[i];
    EXPECT_LT(Error(all.gradients[i], others.gradients[i]), 0.06) << all.names[i];
  }
}

TEST_F(Fp8TrainingTest, TrainsAsFarAsPlainProducts) {
  constexpr int kSteps = 60;
  const Fp8Curve plain = Train(Job(Matmul::kBf16), kSteps);
  ASSERT_LT(plain.losses.back(), 0.3 * plain.losses.front());
  for (const Matmul recipe : kRecipes) {
    const Fp8Curve fp8 = Train(Job(recipe), kSteps);
    // Of the way that plain products have gone.
    const double way = plain.losses.front() - plain.losses.back();
    EXPECT_NEAR(fp8.losses.back(), plain.losses.back(), 0.02 * way);
  }
}

TEST_F(Fp8TrainingTest, EveryPlanTrainsToTheSameBits) {
  for (const Matmul recipe : kRecipes) {
    const Fp8Curve expected = Train(Job(recipe), 3);
    for (const Recompute level : {Recompute::kNothing, Recompute::kNorms, Recompute::kMlp,
                                  Recompute::kLinears, Recompute::kAll}) {
      for (const int64_t kept : {0, 1, kFp8Layers}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(level) << " " << kept);
        ExpectSameBits(Train(Job(recipe), 3, {.shallow = level, .kept = kept}), expected);
      }
    }
  }
}

// A tile's tokens share the scales of its weight gradients.
TEST_F(Fp8TrainingTest, TilesOfTheFeedForwardLayerTrainNearTheWhole) {
  const plan::ExecutionPlan whole{.shallow = Recompute::kMlp};
  plan::ExecutionPlan tiles = whole;
  tiles.mlp_rows = 10;
  const Fp8Curve expected = Train(Job(Matmul::kFp8), 1, whole);
  const Fp8Curve tiled = Train(Job(Matmul::kFp8), 1, tiles);
  EXPECT_NEAR(tiled.losses[0], expected.losses[0], 1e-5 * expected.losses[0]);
  for (size_t i = 0; i < expected.names.size(); ++i) {
    EXPECT_LT(Error(tiled.gradients[i], expected.gradients[i]), 0.06) << expected.names[i];
  }
}

// ---- what is converted, and how often ----

struct Fp8Counts {
  int products = 0, rows = 0, columns = 0;
};
Fp8Counts fp8_counts;

std::unique_ptr<at::ObserverContext> CountFp8(const at::RecordFunction& call) {
  const std::string_view name = call.name();
  fp8_counts.products += name == "sft::Fp8Gemm";
  fp8_counts.rows += name == "sft::Fp8Quantize";
  fp8_counts.columns += name == "sft::Fp8QuantizeColumns";
  return nullptr;
}

TEST_F(Fp8TrainingTest, KeptCopiesAreMadeOnceAStep) {
  constexpr int kSteps = 3, kMatrices = 4 * kFp8Layers;
  const auto count = [&](Matmul recipe, int64_t kept) {
    fp8_counts = {};
    const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&CountFp8));
    Train(Job(recipe), kSteps, {.kept = kept});
    at::removeCallback(handle);
    return fp8_counts;
  };
  const Fp8Counts once = count(Matmul::kFp8Bf16Wgrad, kFp8Layers);
  const Fp8Counts each = count(Matmul::kFp8Bf16Wgrad, 0), all = count(Matmul::kFp8, kFp8Layers);
  EXPECT_EQ(once.columns, kSteps * kMatrices);
  EXPECT_EQ(each.columns, kSteps * kFp8MicroBatches * kMatrices);
  EXPECT_EQ(each.rows - once.rows, kSteps * (kFp8MicroBatches - 1) * kMatrices);
  // With weight gradients two operands for each matrix, and one more product.
  EXPECT_EQ(once.products, kSteps * kFp8MicroBatches * 2 * kMatrices);
  EXPECT_EQ(all.products, kSteps * kFp8MicroBatches * 3 * kMatrices);
  EXPECT_EQ(all.columns - once.columns, kSteps * kFp8MicroBatches * 2 * kMatrices);
}

TEST_F(Fp8TrainingTest, ALinearOfAnotherSizeIsRefusedByName) {
  std::string config = TinyConfig();
  config.replace(config.find("\"intermediate_size\": 48"), 23, "\"intermediate_size\": 40");
  WriteTinyModel(dir_.path(), config);
  const auto comm = MakeLocalCommunicator(at::kCPU);
  try {
    TrainingModel(Job(Matmul::kFp8), dir_.path(), *comm);
    FAIL() << "nothing was thrown";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("model.layers.0.mlp.gate_proj.weight has 40 outputs"));
    EXPECT_THAT(error.advice(), testing::HasSubstr("training.matmul = \"bf16\""));
  }
}

}  // namespace
}  // namespace sft::engine
