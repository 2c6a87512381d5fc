#include "worker/engine/optim/grad_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/worker/engine/dist/run_ranks.h"

namespace sft::engine {
namespace {

TEST(GradNormTest, EqualsTheNormOfAllElements) {
  const std::vector<at::Tensor> grads{at::arange(1, 20'001, at::kFloat), at::Tensor(),
                                      at::full({3, 5}, -2, at::kBFloat16), at::zeros({0})};
  // n (n + 1) (2n + 1) / 6 for the squares of 1 .. n.
  const double expected = 20'000.0 * 20'001.0 * 40'001.0 / 6 + 15 * 4;
  EXPECT_DOUBLE_EQ(SquaredNorm(grads), expected);
}

TEST(GradNormTest, DoesNotDependOnTheNumberOfThreads) {
  const std::vector<at::Tensor> grads{at::arange(300'001, at::kFloat).sin_()};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const double one = SquaredNorm(grads);
  at::set_num_threads(2);
  EXPECT_EQ(SquaredNorm(grads), one);
  at::set_num_threads(threads);
}

TEST(GradNormTest, TensorsEndToEndInOneStorageAreJoinedWhateverTheirOrder) {
  const at::Tensor flat = at::arange(100, at::kFloat), other = at::arange(5, at::kFloat);
  const std::vector<at::Tensor> parts{flat.narrow(0, 60, 40).view({8, 5}),
                                      other,
                                      at::Tensor(),
                                      flat.narrow(0, 0, 10),
                                      flat.narrow(0, 30, 0),
                                      flat.narrow(0, 10, 50)};
  const std::vector<at::Tensor> joined = JoinAdjacent(parts);
  ASSERT_EQ(joined.size(), 2u);
  EXPECT_TRUE(joined[0].equal(flat));
  EXPECT_EQ(joined[0].const_data_ptr(), flat.const_data_ptr());
  EXPECT_TRUE(joined[1].is_same(other));
}

TEST(GradNormTest, GapsOverlapsOtherTypesAndStridesKeepTensorsApart) {
  const at::Tensor flat = at::arange(100, at::kFloat), matrix = flat.narrow(0, 40, 20).view({4, 5});
  const std::vector<at::Tensor> parts{flat.narrow(0, 0, 10),  // then a gap of one element
                                      flat.narrow(0, 11, 9),
                                      flat.narrow(0, 15, 10),  // overlaps the one before
                                      matrix.t(),
                                      flat.narrow(0, 60, 4),
                                      flat.view(at::kInt).narrow(0, 64, 6)};
  const std::vector<at::Tensor> joined = JoinAdjacent(parts);
  ASSERT_EQ(joined.size(), parts.size());
  const std::vector<size_t> order{0, 1, 2, 4, 5, 3};  // by place; the transposed one on its own
  for (size_t i = 0; i < order.size(); ++i) EXPECT_TRUE(joined[i].is_same(parts[order[i]])) << i;
}

TEST(GradNormTest, CountsShardsOfAllRanksAndReplicatedOnce) {
  const at::Tensor whole = at::arange(1, 11, at::kFloat), replicated = at::full({4}, 3, at::kFloat);
  const auto alone = MakeLocalCommunicator(at::kCPU);
  RunRanks(3, [&](Communicator& comm) {
    const std::vector<int64_t> counts = PartSizes(10, 3);
    const std::vector<UnitGradient> mine{
        {0, whole.narrow(0, comm.rank() * counts[0], counts[comm.rank()])}};
    EXPECT_DOUBLE_EQ(GlobalGradNorm(mine, *alone, comm), std::sqrt(385.0));
    EXPECT_DOUBLE_EQ(GlobalGradNorm({{0, replicated}}, *alone, *alone), 6.0);
  });
}

// Numbers whose sum depends on the order in which they are added.
TEST(GradNormTest, HowUnitsAreDividedOverStagesDoesNotShowInTheBits) {
  std::vector<UnitGradient> all;
  for (int unit = 0; unit < 9; ++unit) {
    for (int part = 0; part < 3; ++part) {
      all.push_back({unit, at::arange(1, 4001 + 77 * unit, at::kFloat).mul_(0.37 * part).sin_()});
    }
  }
  const auto alone = MakeLocalCommunicator(at::kCPU);
  const double expected = GlobalGradNorm(all, *alone, *alone);
  // In one piece each, and in turn.
  for (const bool in_turn : {false, true}) {
    RunRanks(3, [&](Communicator& comm) {
      std::vector<UnitGradient> mine;
      for (const UnitGradient& part : all) {
        const int stage = in_turn ? part.unit % 3 : part.unit < 2 ? 0 : part.unit < 8 ? 1 : 2;
        if (stage == comm.rank()) mine.push_back(part);
      }
      EXPECT_EQ(GlobalGradNorm(mine, comm, *alone), expected);
    });
  }
}

TEST(GradNormTest, AStageWithNothingTrainedAddsNothing) {
  const auto alone = MakeLocalCommunicator(at::kCPU);
  RunRanks(2, [&](Communicator& comm) {
    std::vector<UnitGradient> mine;
    if (comm.rank() == 1) mine.push_back({3, at::full({4}, 3, at::kFloat)});
    EXPECT_DOUBLE_EQ(GlobalGradNorm(mine, comm, *alone), 6.0);
  });
}

TEST(GradNormTest, ClipsAsTorch) {
  EXPECT_DOUBLE_EQ(ClipFactor(2.0, 1.0), 1.0 / (2.0 + 1e-6));
  EXPECT_EQ(ClipFactor(0.5, 1.0), 1.0);
  EXPECT_EQ(ClipFactor(0.0, 1.0), 1.0);
  EXPECT_EQ(ClipFactor(100.0, 0.0), 1.0);
}

}  // namespace
}  // namespace sft::engine
