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

spec::JobSpec OverNodes(int nodes, int gpus, spec::JobSpec job) {
  job.compute.gpus_per_node = gpus;
  job.compute.nodes = nodes;
  job.compute.gpu_count = job.parallelism.context_parallel_size = nodes * gpus;
  return job;
}

TEST(ContextTest, ANodesRanksDivideHeadsAndNodesGatherKeys) {
  const ModelShape shape = Qwen3Of8B();  // heads of 128
  const spec::JobSpec job = OverNodes(2, 4, Qlora(1, 1, 2048));
  EXPECT_FALSE(CheckContext(shape, job));
  EXPECT_EQ(ShareOfTokens(2048, job), 256);
  EXPECT_EQ(ShapeOfShare(shape, job).heads, 8);
  EXPECT_EQ(ExchangedOf(shape, 0, job).inputs, (32 + 2 * 8) * 128);
  EXPECT_EQ(GatheredOf(shape, 0, job), 8 * 2 * 2 * 128);
  EXPECT_EQ(GatheredOf(shape, 0, SharedBy(4, Qlora(1, 1, 2048))), 0);
  EXPECT_EQ(ExchangedOf(shape, 0, OverNodes(2, 1, Qlora(1, 1, 2048))).inputs, 0);
  EXPECT_FALSE(CheckContext(shape, OverNodes(3, 1, Qlora(1, 1, 2048))))
      << "nodes need not divide the heads";
  const auto problem = CheckContext(shape, OverNodes(2, 3, Qlora(1, 1, 2048)));
  ASSERT_TRUE(problem);
  EXPECT_THAT(
      problem->message,
      HasSubstr("6 over nodes of 3 GPUs, which share the heads, does not divide the model's "
                "32 heads with 8 of keys; 2, 4, 8, 16, 32 would do, on nodes with"));
}

TEST(ContextTest, ADeltaNetsHeadsAreDividedInANodeAlone) {
  ModelShape shape = Qwen3Of8B();
  shape.delta = {.key_heads = 16, .value_heads = 32, .key_size = 128, .value_size = 128};
  shape.layer_shapes.assign(static_cast<size_t>(shape.layers), shape.Layer(0));
  shape.layer_shapes[0].delta = true;
  const spec::JobSpec job = SharedBy(4, Qlora(1, 1, 2048));
  EXPECT_FALSE(CheckContext(shape, job));
  const ModelShape share = ShapeOfShare(shape, job);
  EXPECT_EQ(share.delta.key_heads, 4);
  EXPECT_EQ(share.delta.value_heads, 8);
  EXPECT_EQ(ExchangedOf(shape, 0, job).inputs, 2 * 16 * 128 + 32 * 128 + 2 * 32);
  EXPECT_EQ(ExchangedOf(shape, 0, job).outputs, 32 * 128);
  EXPECT_THAT(CheckContext(shape, SharedBy(32, Qlora(1, 1, 2048)))->message,
              HasSubstr("its DeltaNets' 16 heads of keys"));
  EXPECT_THAT(CheckContext(shape, OverNodes(2, 4, Qlora(1, 1, 2048)))->message,
              HasSubstr("8 over 2 nodes does not go with qwen3 yet: its gated DeltaNets carry a "
                        "state from token to token; 2, 4 would do"));
}

// Four GPUs over two nodes hold nearly what four of one node hold, more slowly: FlashAttention-2,
// and keys over the network.
TEST(ContextTest, NodesAreSlowerThanOneNodeAndHoldLongerRowsThanHalfOfTheGpus) {
  const auto one = MakePlan(Input(SharedBy(4, Qlora(1, 1, 262'144)), 140));
  const auto two = MakePlan(Input(OverNodes(2, 2, Qlora(1, 1, 262'144)), 140));
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_LT(two->tokens_per_second, one->tokens_per_second);
  EXPECT_GT(two->tokens_per_second, 0.4 * one->tokens_per_second);
  const auto two_gpus = LeastBytes(Qwen3Of8B(), SharedBy(2, Qlora(1, 1, 262'144)));
  const auto over_nodes = LeastBytes(Qwen3Of8B(), OverNodes(2, 2, Qlora(1, 1, 262'144)));
  EXPECT_LT(*over_nodes, *two_gpus);
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
