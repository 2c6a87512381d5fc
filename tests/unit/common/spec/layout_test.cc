#include "common/spec/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

constexpr char kEight[] = "gpu_count = 8\n";
constexpr char kPrefix[] = "hyperparameters.parallelism.";

struct OtherLayout {
  Resolution given, other;
};

OtherLayout In(const std::string& text, const Layout& layout) {
  const std::vector<Override> overrides;
  const ResolveOptions options;
  const std::string file = Minimal(text);
  OtherLayout made{.given = Resolve(file, "job.toml", overrides, options)};
  EXPECT_TRUE(made.given.ok()) << Describe(made.given.problems);
  made.other = InLayout({file, "job.toml", overrides, options}, made.given, layout);
  return made;
}

TEST(LayoutTest, AnyWordOfItNamesALayoutButAnAutomaticMap) {
  const auto names = [](const std::string& more) {
    const Resolution r = ResolveText(Minimal(std::string(kEight) + more));
    EXPECT_TRUE(r.ok()) << Describe(r.problems);
    return NamesLayout(r);
  };
  EXPECT_FALSE(names(""));
  EXPECT_FALSE(names("[hyperparameters]\nglobal_batch = 64\nper_device_batch = \"auto\"\n"));
  EXPECT_FALSE(names("[model]\ndevice_map = \"auto\"\n"));
  EXPECT_FALSE(names("[hyperparameters.parallelism]\nactivation_checkpointing = true\n"));
  for (const char* key :
       {"fsdp = true", "fsdp = false", "deepspeed_stage = 2", "context_parallel_size = 2",
        "pipeline_parallel_size = 1", "tensor_parallel_size = 2"}) {
    EXPECT_TRUE(names(std::string("[hyperparameters.parallelism]\n") + key + "\n")) << key;
  }
  EXPECT_TRUE(names("[model]\ndevice_map = \"balanced\"\n"));
}

TEST(LayoutTest, LayoutsAreDistinctAndTheirKeysSayThem) {
  JobSpec::Compute compute;
  compute.gpu_count = 8;
  compute.nodes = 2;
  compute.gpus_per_node = 4;
  std::set<std::string> texts;
  const std::vector<Layout> layouts = LayoutsFor(compute);
  for (const Layout& layout : layouts) texts.insert(ToText(layout));
  EXPECT_EQ(texts.size(), layouts.size());
  EXPECT_EQ(ToText(layouts.front()), "fsdp = false");
  EXPECT_TRUE(texts.contains("fsdp = true, fsdp_sharding_strategy = \"hybrid_shard\""));
  EXPECT_TRUE(texts.contains("fsdp = true, pipeline_parallel_size = 2"));
  EXPECT_TRUE(texts.contains("pipeline_parallel_size = 8, virtual_pipeline_parallel_size = 2"));
  for (const Layout& layout : layouts) {
    EXPECT_TRUE(layout.context <= 4 || layout.context == 8) << "a row is shared by whole nodes";
    EXPECT_EQ(8 % (layout.stages * layout.context * layout.tensor), 0) << ToText(layout);
  }
}

// A file with the keys of each layout is the job in that layout, and the rows of a step stay.
TEST(LayoutTest, EveryLayoutResolvesToItselfWithTheSameRowsOfAStep) {
  for (const char* batch :
       {"global_batch = 64\nper_device_batch = \"auto\"\n", "per_device_batch = 2\n",
        "per_device_batch = 2\ngradient_accumulation_steps = 3\n", "global_batch = 32\n"}) {
    const std::string text = std::string("gpu_count = 8\nnodes = 2\n[hyperparameters]\n") + batch;
    JobSpec::Compute compute;
    compute.gpu_count = 8, compute.nodes = 2, compute.gpus_per_node = 4;
    for (const Layout& layout : LayoutsFor(compute)) {
      const OtherLayout made = In(text, layout);
      ASSERT_TRUE(made.other.ok()) << ToText(layout) << Describe(made.other.problems);
      EXPECT_EQ(LayoutOf(made.other.spec), layout) << ToText(layout);
      const auto& before = made.given.spec.hyperparameters;
      const auto& after = made.other.spec.hyperparameters;
      EXPECT_EQ(after.global_batch, before.global_batch) << ToText(layout) << batch;
      EXPECT_EQ(after.per_device_batch, before.per_device_batch) << ToText(layout) << batch;
    }
  }
}

TEST(LayoutTest, WhatDoesNotGoWithTheJobHasItsProblems) {
  const OtherLayout made = In("gpu_count = 8\n[training]\nmatmul = \"fp8\"\n", {.stages = 2});
  EXPECT_THAT(Describe(made.other.problems), HasSubstr("does not go with training.matmul"));
}

TEST(LayoutTest, AnotherLayoutReplacesTheNamedOne) {
  for (const char* keys :
       {"fsdp = true\nfsdp_sharding_strategy = \"shard_grad_op\"\n", "deepspeed_stage = 3\n",
        "pipeline_parallel_size = 4\n", "context_parallel_size = 2\n"}) {
    const std::string text = std::string("gpu_count = 8\n[hyperparameters.parallelism]\n") + keys;
    for (const Layout& layout : {Layout{}, Layout{.sharding = Sharding::kFullShard},
                                 Layout{.stages = 2}, Layout{.sharding = Sharding::kZero1}}) {
      const OtherLayout made = In(text, layout);
      ASSERT_TRUE(made.other.ok()) << keys << ToText(layout) << Describe(made.other.problems);
      EXPECT_EQ(LayoutOf(made.other.spec), layout) << keys << ToText(layout);
    }
  }
}

TEST(LayoutTest, RanksShareRowsWhereAStepHasFewerThanThereAreRanks) {
  const auto resolve = [](const std::string& more) {
    const std::vector<Override> overrides;
    const ResolveOptions options;
    return ResolveInSomeLayout({Minimal("gpu_count = 8\n" + more), "job.toml", overrides, options});
  };
  const Resolution two = resolve("[hyperparameters]\nglobal_batch = 2\n");
  ASSERT_TRUE(two.ok()) << Describe(two.problems);
  EXPECT_EQ(two.spec.parallelism.context_parallel_size, 4);
  EXPECT_EQ(two.spec.hyperparameters.global_batch, 2);
  EXPECT_EQ(two.spec.hyperparameters.per_device_batch, 1);
  EXPECT_EQ(OriginOf(two, "hyperparameters.global_batch"), "job.toml:8");
  EXPECT_EQ(OriginOf(two, std::string(kPrefix) + "context_parallel_size"),
            "derived: a step has fewer rows than there are GPUs");
  EXPECT_FALSE(NamesLayout(two)) << "a plan may choose another";
  EXPECT_TRUE(SharesFewRows(two));
  EXPECT_FALSE(SharesFewRows(resolve("[hyperparameters]\nglobal_batch = 8\n")));
  // More rows that do not divide are a mistake, and so are few in a layout that was named.
  EXPECT_FALSE(resolve("[hyperparameters]\nglobal_batch = 12\n").ok());
  EXPECT_FALSE(
      resolve("[hyperparameters]\nglobal_batch = 2\n[hyperparameters.parallelism]\nfsdp = true\n")
          .ok());
  EXPECT_THAT(Describe(resolve("[hyperparameters]\nglobal_batch = 2\nn_epochs = 0\n").problems),
              HasSubstr("global_batch"));
}

TEST(LayoutTest, ALayoutThatAJobKeepsIsNotOneThatSomebodyNames) {
  const auto keeps = [](const std::string& origin) {
    const std::vector<Override> overrides = {{std::string(kPrefix) + "fsdp", "true", origin}};
    return KeepsLayout(Resolve(Minimal("gpu_count = 8\n"), "job.toml", overrides));
  };
  EXPECT_TRUE(keeps(std::string(kKeptLayout) + "job-1"));
  EXPECT_FALSE(keeps("--set"));
}

TEST(LayoutTest, ATakenLayoutIsSaidToBeThePlansAndLeavesTheRest) {
  OtherLayout made = In("gpu_count = 8\n[hyperparameters]\nper_device_batch = 2\n",
                        {.sharding = Sharding::kFullShard, .stages = 2});
  TakeLayout(made.other, ": because", made.given);
  const Resolution& r = made.given;
  EXPECT_EQ(LayoutOf(r.spec), LayoutOf(made.other.spec));
  EXPECT_EQ(r.spec.hyperparameters.global_batch, 16);
  EXPECT_EQ(r.spec.hyperparameters.gradient_accumulation_steps, 2);
  EXPECT_EQ(TextOf(r, std::string(kPrefix) + "pipeline_parallel_size"), "2");
  EXPECT_EQ(OriginOf(r, std::string(kPrefix) + "pipeline_parallel_size"), kChosenByPlan);
  EXPECT_EQ(OriginOf(r, std::string(kPrefix) + "fsdp"), "derived: chosen by the plan: because");
  EXPECT_EQ(OriginOf(r, "hyperparameters.gradient_accumulation_steps"),
            "derived: global_batch over the ranks of the layout");
  EXPECT_THAT(OriginOf(r, "hyperparameters.per_device_batch"), HasSubstr("job.toml:"));
  EXPECT_FALSE(NamesLayout(r)) << "nobody named it";
}

}  // namespace
}  // namespace sft::spec
