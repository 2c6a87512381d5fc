#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/unit/worker/engine/kernels/random_tensor.h"
#include "worker/engine/kernels/ops.h"

// Linear attention of pieces of documents, from the states before them.

namespace sft::engine {
namespace {

using at::Tensor;

constexpr int64_t kStepKeyHeads = 2, kStepHeads = 4, kStepKey = 8, kStepValue = 6;

struct StepData {
  Tensor q, k, v, g, beta;

  StepData Rows(int64_t first, int64_t count) const {
    const auto part = [&](const Tensor& x) { return x.narrow(0, first, count); };
    return {part(q), part(k), part(v), part(g), part(beta)};
  }
  // The rows of both, one behind the other.
  static StepData Joined(const StepData& a, const StepData& b) {
    const auto both = [](const Tensor& x, const Tensor& y) { return at::cat({x, y}); };
    return {both(a.q, b.q), both(a.k, b.k), both(a.v, b.v), both(a.g, b.g), both(a.beta, b.beta)};
  }
};

StepData RandomSteps(int64_t tokens, int seed) {
  return {Random({tokens, kStepKeyHeads, kStepKey}, seed),
          Random({tokens, kStepKeyHeads, kStepKey}, seed + 1),
          Random({tokens, kStepHeads, kStepValue}, seed + 2),
          Random({tokens, kStepHeads}, seed + 3).abs().neg(),
          Random({tokens, kStepHeads}, seed + 4).sigmoid()};
}

Tensor Next(const StepData& data, Tensor& states, const ops::Pieces& pieces) {
  Tensor out = at::empty(data.v.sizes(), data.v.options());
  ops::GatedDeltaNext(out, states, data.q, data.k, data.v, data.g, data.beta, pieces);
  return out;
}

Tensor RuleStates() { return at::zeros({3, kStepHeads, kStepKey, kStepValue}); }

TEST(DeltaStepsTest, ADocumentTokenByTokenIsWhatItsChunksAre) {
  constexpr int64_t kTokens = 150;
  const StepData data = RandomSteps(kTokens, 1);
  Tensor whole = at::empty(data.v.sizes(), data.v.options());
  const std::vector<int64_t> lengths{kTokens};
  ops::GatedDelta(whole, data.q, data.k, data.v, data.g, data.beta, {{}, lengths});
  Tensor states = RuleStates();
  const Tensor out = Next(data, states, {{kTokens}, {1}});
  EXPECT_LT((out - whole).norm().item<double>(), 1e-5 * whole.norm().item<double>());
  EXPECT_EQ(states[0].abs().sum().item<double>(), 0.0) << "that is another document's";
}

TEST(DeltaStepsTest, BitsDependNeitherOnTheCutNorOnOtherDocuments) {
  const StepData one = RandomSteps(11, 1), other = RandomSteps(5, 10);
  Tensor alone = RuleStates();
  const Tensor expected = Next(one, alone, {{11}, {2}});
  Tensor states = RuleStates();
  std::vector<Tensor> parts{Next(one.Rows(0, 4), states, {{4}, {2}})};
  // Behind a piece of another document, then before one.
  parts.push_back(Next(StepData::Joined(other.Rows(0, 3), one.Rows(4, 1)), states, {{3, 1}, {0, 2}})
                      .narrow(0, 3, 1));
  parts.push_back(Next(StepData::Joined(one.Rows(5, 6), other.Rows(3, 2)), states, {{6, 2}, {2, 0}})
                      .narrow(0, 0, 6));
  EXPECT_TRUE(at::equal(at::cat(parts), expected));
  EXPECT_TRUE(at::equal(states[2], alone[2]));
}

TEST(DeltaStepsTest, AConvolutionGoesOnWhereItWasCut) {
  constexpr int64_t kColumns = 300;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor x = Random({9, kColumns + 4}, 3).to(type).narrow(1, 2, kColumns);
    const Tensor weight = Random({kColumns, 4}, 4);
    Tensor whole = at::empty({9, kColumns}, x.options());
    const std::vector<int64_t> lengths{9};
    ops::ShortConv(whole, x, weight, {{}, lengths});
    const std::vector<std::vector<int64_t>> cuts{{9}, {1, 1, 7}, {4, 5}};
    for (const std::vector<int64_t>& cut : cuts) {
      Tensor before = at::zeros({2, 3, kColumns}, x.options());
      int64_t first = 0;
      for (const int64_t count : cut) {
        Tensor out = at::empty({count, kColumns}, x.options());
        ops::ShortConvNext(out, before, x.narrow(0, first, count), weight, {{count}, {1}});
        EXPECT_TRUE(at::equal(out, whole.narrow(0, first, count))) << type << ", row " << first;
        first += count;
      }
      EXPECT_TRUE(at::equal(before[1], x.narrow(0, 6, 3)));
    }
  }
}

TEST(DeltaStepsTest, PaddingIsZerosAndHasNoState) {
  const StepData data = RandomSteps(5, 1);
  Tensor states = RuleStates(), alone = RuleStates();
  const Tensor out = Next(data, states, {{3, 2}, {1, -1}});
  EXPECT_TRUE(at::equal(out.narrow(0, 0, 3), Next(data.Rows(0, 3), alone, {{3}, {1}})));
  EXPECT_TRUE(at::equal(states, alone));
  EXPECT_EQ(out.narrow(0, 3, 2).abs().sum().item<double>(), 0.0);
  const Tensor x = Random({5, 8}, 3), weight = Random({8, 4}, 4);
  Tensor before = at::ones({1, 3, 8}), rows = at::empty({5, 8});
  ops::ShortConvNext(rows, before, x, weight, {{5}, {-1}});
  EXPECT_EQ(rows.abs().sum().item<double>(), 0.0);
  EXPECT_TRUE(before.eq(1.0).all().item<bool>());
}

TEST(DeltaStepsTest, PiecesThatDoNotFitAreRefused) {
  const StepData data = RandomSteps(4, 1);
  Tensor states = RuleStates();
  EXPECT_THROW(Next(data, states, {{3}, {0}}), c10::Error) << "a row of no piece";
  EXPECT_THROW(Next(data, states, {{4}, {3}}), c10::Error) << "no such state";
  Tensor half = RuleStates().to(at::kBFloat16);
  EXPECT_THROW(Next(data, half, {{4}, {0}}), c10::Error);
}

}  // namespace
}  // namespace sft::engine
