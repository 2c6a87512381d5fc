#include "common/plan/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/plan/plan.h"
#include "tests/unit/common/plan/jobs.h"
#include "tests/unit/common/plan/shapes.h"

namespace sft::plan {
namespace {

using ::testing::HasSubstr;

spec::JobSpec SharedBy(int ranks, spec::JobSpec job) {
  job.compute.gpu_count = job.compute.gpus_per_node = ranks;
  job.parallelism.context_parallel_size = ranks;
  return job;
}

TEST(ContextTest, AShareIsAMultipleOfEightTokensAndAllSharesHoldTheRow) {
  const spec::JobSpec job = SharedBy(4, Qlora(1, 1, 2048));
  EXPECT_EQ(ShareOfTokens(2048, job), 512);
  EXPECT_EQ(ShareOfTokens(2049, job), 520);
  EXPECT_EQ(ShareOfTokens(1, job), 8);
  EXPECT_EQ(ShareOfTokens(2049, Qlora(1, 1, 2049)), 2049);
}

TEST(ContextTest, HeadsAreDividedAndHeadsOfKeysRepeated) {
  const ModelShape shape = Qwen3Of8B();  // 32 heads, 8 of keys
  for (const auto& [ranks, heads, keys] : {std::tuple(2, 16, 4), {8, 4, 1}, {16, 2, 1}}) {
    const spec::JobSpec job = SharedBy(ranks, Qlora(1, 1, 2048));
    EXPECT_FALSE(CheckContext(shape, job)) << ranks;
    const ModelShape share = ShapeOfShare(shape, job);
    EXPECT_EQ(share.heads, heads);
    EXPECT_EQ(share.Layer(0).kv_heads, keys);
  }
  const auto problem = CheckContext(shape, SharedBy(3, Qlora(1, 1, 2048)));
  ASSERT_TRUE(problem);
  EXPECT_THAT(problem->message, HasSubstr("2, 4, 8, 16, 32 would do, on nodes with a multiple"));
  spec::JobSpec of_six = SharedBy(3, Qlora(1, 1, 2048));
  of_six.compute.gpu_count = of_six.compute.gpus_per_node = 6;
  EXPECT_THAT(CheckContext(shape, of_six)->message, HasSubstr("of keys; 2 would"));
}

// A row that no GPU of 80 GB holds with all it keeps; halves of it do, in about half of the time.
TEST(ContextTest, TwoGpusHoldARowInLessMemoryAndAboutHalfTheTime) {
  const auto one = MakePlan(Input(Qlora(1, 1, 131'072), 140));
  ASSERT_TRUE(one.ok()) << one.status();
  const auto two = MakePlan(Input(SharedBy(2, Qlora(1, 1, 131'072)), 140));
  ASSERT_TRUE(two.ok()) << two.status();
  const double speedup = two->tokens_per_second / one->tokens_per_second;
  EXPECT_GT(speedup, 1.8);
  EXPECT_LT(speedup, 2.2);
  const auto least_one = LeastBytes(Qwen3Of8B(), Qlora(1, 1, 131'072));
  const auto least_two = LeastBytes(Qwen3Of8B(), SharedBy(2, Qlora(1, 1, 131'072)));
  EXPECT_LT(static_cast<double>(*least_two), 0.9 * static_cast<double>(*least_one));
}

}  // namespace
}  // namespace sft::plan
