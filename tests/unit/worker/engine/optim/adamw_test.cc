#include "worker/engine/optim/adamw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "tests/unit/worker/engine/optim/adamw_oracle.h"
#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

using spec::Optimizer;

// Values in [-1, 1) that do not repeat soon and do not depend on a generator.
at::Tensor Wave(int64_t count, double phase) {
  return at::arange(count, at::kDouble).mul(0.7390851).add(phase).sin().to(at::kFloat);
}

// The formula of adamw.h in fp64.
struct Reference {
  at::Tensor w, m, v;
  AdamWOptions options;
  int steps = 0;

  Reference(const at::Tensor& weight, const AdamWOptions& options)
      : w(weight.to(at::kDouble).clone()),
        m(at::zeros_like(w)),
        v(at::zeros_like(w)),
        options(options) {}

  void Step(const at::Tensor& grad, double lr) {
    const at::Tensor g = grad.to(at::kDouble);
    ++steps;
    w = w - lr * options.weight_decay * w;
    m = options.beta1 * m + (1 - options.beta1) * g;
    v = options.beta2 * v + (1 - options.beta2) * g * g;
    const double bias1 = 1 - std::pow(options.beta1, steps);
    const double bias2 = 1 - std::pow(options.beta2, steps);
    w = w - lr / bias1 * m / (v.sqrt() / std::sqrt(bias2) + options.epsilon);
  }
};

double RelativeError(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor w = want.to(at::kDouble);
  return ((got.to(at::kDouble) - w).norm() / w.norm()).item<double>();
}

AdamWOptions Options(Optimizer kind) { return {.kind = kind, .weight_decay = 0.1, .seed = 7}; }

// One parameter of `count` elements after `steps` steps of deterministic gradients.
at::Tensor Train(Optimizer kind, at::ScalarType type, int64_t count, int steps,
                 bool generic = false, int64_t cut = -1) {
  at::Tensor weight = Wave(count, 0.3).to(type);
  AdamWOptions options = Options(kind);
  options.step = generic ? optim::StepAten : nullptr;
  std::vector<OptimizerParam> params{{.name = "w", .weight = weight, .id = 3}};
  if (cut >= 0) {
    params = {{.name = "w", .weight = weight.narrow(0, 0, cut), .id = 3},
              {.name = "w", .weight = weight.narrow(0, cut, count - cut), .id = 3, .offset = cut}};
  }
  AdamW optimizer(params, options);
  for (int step = 0; step < steps; ++step) {
    const at::Tensor grad = Wave(count, step * 1.7);
    std::vector<at::Tensor> grads{grad};
    if (cut >= 0) grads = {grad.narrow(0, 0, cut), grad.narrow(0, cut, count - cut)};
    optimizer.Step(grads, 1e-2);
  }
  return weight;
}

TEST(AdamWTest, FollowsTheFormulaForRaggedShapes) {
  for (const int64_t count : {1, 7, 255, 4097, 70'001}) {
    at::Tensor weight = Wave(count, 0.3);
    Reference reference(weight, Options(Optimizer::kAdamW));
    AdamW optimizer({{.name = "w", .weight = weight}}, Options(Optimizer::kAdamW));
    for (int step = 0; step < 20; ++step) {
      const at::Tensor grad = Wave(count, step * 1.7);
      optimizer.Step(std::vector<at::Tensor>{grad}, 1e-2);
      reference.Step(grad, 1e-2);
    }
    EXPECT_LT(RelativeError(weight, reference.w), 2e-6) << count;
  }
}

TEST(AdamWTest, EqualsTorchsFusedAdamWToAnUlpAStep) {
  const int64_t count = 5000;
  at::Tensor ours = Wave(count, 0.3), theirs = ours.clone();
  at::Tensor m = at::zeros_like(ours), v = at::zeros_like(ours), step = at::zeros({});
  AdamW optimizer({{.name = "w", .weight = ours}}, Options(Optimizer::kAdamW));
  for (int i = 0; i < 10; ++i) {
    const at::Tensor grad = Wave(count, i * 1.7);
    optimizer.Step(std::vector<at::Tensor>{grad}, 1e-3);
    step.add_(1);
    at::_fused_adamw_({theirs}, {grad.clone()}, {m}, {v}, {}, {step}, 1e-3, 0.9, 0.999, 0.1, 1e-8,
                      false, false);
  }
  EXPECT_LT((ours - theirs).abs().max().item<float>(), 1e-6f);
}

TEST(AdamWTest, EightBitAndBf16StatesStayNearTheFormula) {
  // At 1e-2 a step and 20 steps a weight moves by up to 0.2; states err by about 2 % (8 bit) and
  // 0.4 % (bf16) of their size.
  const int64_t count = 20'000;
  const at::Tensor start = Wave(count, 0.3);
  Reference reference(start, Options(Optimizer::kAdamW));
  for (int step = 0; step < 20; ++step) reference.Step(Wave(count, step * 1.7), 1e-2);
  const double moved = (reference.w - start.to(at::kDouble)).norm().item<double>();
  for (const auto& [kind, tolerance] :
       {std::pair{Optimizer::kAdamWBf16, 0.01}, std::pair{Optimizer::kAdamW8bit, 0.05}}) {
    const at::Tensor weight = Train(kind, at::kFloat, count, 20);
    const double error = (weight.to(at::kDouble) - reference.w).norm().item<double>();
    EXPECT_GT(error, 0);
    EXPECT_LT(error / moved, tolerance) << static_cast<int>(kind);
  }
}

TEST(AdamWTest, SmallTensorsKeepFp32StatesUnderEightBits) {
  EXPECT_TRUE(Train(Optimizer::kAdamW8bit, at::kFloat, 4095, 5)
                  .equal(Train(Optimizer::kAdamW, at::kFloat, 4095, 5)));
  EXPECT_FALSE(Train(Optimizer::kAdamW8bit, at::kFloat, 4096, 5)
                   .equal(Train(Optimizer::kAdamW, at::kFloat, 4096, 5)));
}

TEST(AdamWTest, StochasticRoundingKeepsUpdatesThatNearestRoundingLoses) {
  // One step of 1e-4 is a 39th of a bf16 ulp at 1: rounded to nearest, the weights would not move.
  const int64_t count = 100'000;
  at::Tensor weight = at::ones({count}, at::kBFloat16);
  AdamW optimizer({{.name = "w", .weight = weight}}, {.seed = 1});
  const at::Tensor grad = at::ones({count});
  for (int step = 0; step < 50; ++step) optimizer.Step(std::vector<at::Tensor>{grad}, 1e-4);
  const double mean = weight.to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(mean, 1 - 50 * 1e-4, 1e-4);
  EXPECT_GT(weight.to(at::kFloat).std().item<float>(), 0);
}

TEST(AdamWTest, RunsRepeatBitForBitAndOtherSeedsDiffer) {
  for (const auto kind : {Optimizer::kAdamW, Optimizer::kAdamWBf16, Optimizer::kAdamW8bit}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      EXPECT_TRUE(Train(kind, type, 9000, 5).equal(Train(kind, type, 9000, 5)));
    }
  }
  at::Tensor a = at::ones({1000}, at::kBFloat16), b = a.clone(), c = a.clone();
  const std::vector<at::Tensor> grad{at::ones({1000})};
  AdamW({{.name = "a", .weight = a, .id = 0}}, {.seed = 1}).Step(grad, 1e-3);
  AdamW({{.name = "b", .weight = b, .id = 0}}, {.seed = 2}).Step(grad, 1e-3);
  AdamW({{.name = "c", .weight = c, .id = 1}}, {.seed = 1}).Step(grad, 1e-3);
  EXPECT_FALSE(a.equal(b));
  EXPECT_FALSE(a.equal(c));
}

TEST(AdamWTest, CuttingAParameterIntoShardsChangesNothing) {
  // The cut lies inside a block of 2^16 elements of the random bits.
  for (const auto kind : {Optimizer::kAdamW, Optimizer::kAdamWBf16}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      EXPECT_TRUE(Train(kind, type, 70'000, 3).equal(Train(kind, type, 70'000, 3, false, 66'001)));
    }
  }
  // 8-bit blocks are cut with the shard, so only a cut at a block's edge is neutral.
  EXPECT_TRUE(Train(Optimizer::kAdamW8bit, at::kFloat, 20'000, 3)
                  .equal(Train(Optimizer::kAdamW8bit, at::kFloat, 20'000, 3, false, 40 * 256)));
}

TEST(AdamWTest, TheFormForAnyDeviceEqualsTheCpuLoops) {
  for (const auto kind : {Optimizer::kAdamW, Optimizer::kAdamWBf16, Optimizer::kAdamW8bit}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor loops = Train(kind, type, 70'001, 4);
      const at::Tensor generic = Train(kind, type, 70'001, 4, true);
      // ATen may fuse a multiplication and an addition: an ulp, which now and then turns a
      // rounding.
      const double bound = type == at::kBFloat16 ? 1e-4 : kind == Optimizer::kAdamW ? 1e-6 : 1e-4;
      EXPECT_LT(RelativeError(generic, loops), bound) << static_cast<int>(kind) << " " << type;
    }
  }
}

TEST(AdamWTest, WritesTheCopyInTheOtherType) {
  for (const bool generic : {false, true}) {
    at::Tensor master = Wave(3000, 0.1), copy = at::zeros({3000}, at::kBFloat16);
    AdamWOptions options = Options(Optimizer::kAdamW);
    options.step = generic ? optim::StepAten : nullptr;
    AdamW optimizer({{.name = "w", .weight = master, .copy = copy}}, options);
    optimizer.Step(std::vector<at::Tensor>{Wave(3000, 2)}, 1e-2);
    EXPECT_TRUE(copy.equal(master.to(at::kBFloat16)));
    at::Tensor low = Wave(3000, 0.1).to(at::kBFloat16), wide = at::zeros({3000});
    AdamW other({{.name = "w", .weight = low, .copy = wide}}, options);
    other.Step(std::vector<at::Tensor>{Wave(3000, 2)}, 1e-2);
    EXPECT_TRUE(wide.equal(low.to(at::kFloat)));
  }
}

TEST(AdamWTest, GradientScaleAndBf16GradientsAreApplied) {
  at::Tensor a = Wave(500, 0), b = a.clone(), c = a.clone();
  const at::Tensor grad = Wave(500, 1).to(at::kBFloat16);
  const AdamWOptions options = Options(Optimizer::kAdamW);
  AdamW({{.name = "a", .weight = a}}, options).Step(std::vector<at::Tensor>{grad}, 1e-2, 0.25);
  AdamW({{.name = "b", .weight = b}}, options)
      .Step(std::vector<at::Tensor>{grad.to(at::kFloat) * 0.25}, 1e-2);
  EXPECT_TRUE(a.equal(b));
  AdamW({{.name = "c", .weight = c}}, {.epsilon = 1.0})
      .Step(std::vector<at::Tensor>{grad}, 1e-2, 0.25);
  EXPECT_FALSE(a.equal(c));
}

TEST(AdamWTest, SkipsUndefinedGradientsAndEmptyShards) {
  at::Tensor weight = Wave(10, 0), kept = weight.clone(), empty = at::zeros({0});
  AdamW optimizer({{.name = "w", .weight = weight}, {.name = "e", .weight = empty}}, {});
  optimizer.Step(std::vector<at::Tensor>{at::Tensor(), at::zeros({0})}, 1e-2);
  EXPECT_TRUE(weight.equal(kept));
  EXPECT_EQ(optimizer.steps(), 1);
}

TEST(AdamWTest, StateBytesAreWhatIsAllocated) {
  for (const auto& [kind, elements, bytes] :
       {std::tuple{Optimizer::kAdamW, 5000, 40'000},
        std::tuple{Optimizer::kAdamWBf16, 5000, 20'000},
        std::tuple{Optimizer::kAdamW8bit, 5000, 10'000 + 2 * 20 * 4},
        std::tuple{Optimizer::kAdamW8bit, 4000, 32'000}}) {
    AdamW optimizer({{.name = "w", .weight = at::zeros({elements})}}, {.kind = kind});
    EXPECT_EQ(optimizer.StateBytes(), bytes);
    EXPECT_EQ(AdamWStateBytes(kind, elements), bytes);
  }
}

TEST(AdamWTest, RefusesWhatItCannotUpdate) {
  EXPECT_THROW(AdamW({{.name = "w", .weight = at::zeros({4}, at::kHalf)}}, {}), InternalError);
  EXPECT_THROW(AdamW({{.name = "w", .weight = at::zeros({4, 4}).t().narrow(0, 0, 2)}}, {}),
               InternalError);
  EXPECT_THROW(AdamW({{.name = "w", .weight = at::zeros({4}), .copy = at::zeros({4})}}, {}),
               InternalError);
  AdamW optimizer({{.name = "w", .weight = at::zeros({4})}}, {});
  EXPECT_THROW(optimizer.Step(std::vector<at::Tensor>{}, 1), InternalError);
  EXPECT_THROW(optimizer.Step(std::vector<at::Tensor>{at::zeros({5})}, 1), InternalError);
}

}  // namespace
}  // namespace sft::engine
