#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kHead = "[job]\nmodel = \"m\"\ndata = \"d\"\n";
constexpr std::string_view kFourH100 =
    "[compute]\ngpu_type = \"H100\"\ngpu_count = 4\nnodes = 1\nvariant = \"H100-4x\"\n"
    "gpus_per_node = 4\n[data.topology]\ncontainer_count = 4\ngpus_per_node = 4\ntotal_gpus = 4\n"
    "nodes = 1\nvariant = \"H100-4x\"\n";

struct Case {
  std::string_view name;
  std::string_view text;
  std::vector<Override> overrides;
  std::string_view type;
  int count, nodes, per_node;
  std::string_view variant;

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

class TopologyTest : public ::testing::TestWithParam<Case> {};

TEST_P(TopologyTest, AllFiveKeysAndTheirCopiesAgree) {
  const Case& c = GetParam();
  const Resolution r = ResolveText(std::string(kHead) + std::string(c.text), c.overrides);
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.compute.gpu_type, c.type);
  EXPECT_EQ(r.spec.compute.gpu_count, c.count);
  EXPECT_EQ(r.spec.compute.nodes, c.nodes);
  EXPECT_EQ(r.spec.compute.gpus_per_node, c.per_node);
  EXPECT_EQ(r.spec.compute.variant, c.variant);
  EXPECT_EQ(TextOf(r, "data.topology.container_count"), std::to_string(c.count));
  EXPECT_EQ(TextOf(r, "data.topology.total_gpus"), std::to_string(c.count));
  EXPECT_EQ(TextOf(r, "data.topology.gpus_per_node"), std::to_string(c.per_node));
  EXPECT_EQ(TextOf(r, "data.topology.nodes"), std::to_string(c.nodes));
  EXPECT_EQ(TextOf(r, "data.topology.variant"), c.variant);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, TopologyTest,
    ::testing::Values(
        Case{"TheWholeFile", kFourH100, {}, "H100", 4, 1, 4, "H100-4x"},
        Case{"VariantAlone", "[compute]\nvariant = \"CPU-2x\"", {}, "CPU", 2, 1, 2, "CPU-2x"},
        Case{"VariantTimesNodes",
             "[compute]\nvariant = \"H100-8x\"\nnodes = 2",
             {},
             "H100",
             16,
             2,
             8,
             "H100-8x"},
        Case{"VariantAndCount",
             "[compute]\nvariant = \"H100-8x\"\ngpu_count = 16",
             {},
             "H100",
             16,
             2,
             8,
             "H100-8x"},
        Case{"TypeAlone", "[compute]\ngpu_type = \"A100\"", {}, "A100", 1, 1, 1, "A100-1x"},
        Case{"TypeAndCount",
             "[compute]\ngpu_type = \"A100\"\ngpu_count = 4",
             {},
             "A100",
             4,
             1,
             4,
             "A100-4x"},
        Case{"TypeCountAndNodes",
             "[compute]\ngpu_type = \"A100\"\ngpu_count = 4\nnodes = 2",
             {},
             "A100",
             4,
             2,
             2,
             "A100-2x"},
        Case{"TypeWithADash",
             "[compute]\nvariant = \"RTX-4090-2x\"",
             {},
             "RTX-4090",
             2,
             1,
             2,
             "RTX-4090-2x"},
        Case{"CopiesAlone",
             "[compute]\ngpu_type = \"H100\"\n[data.topology]\ntotal_gpus = 4\nnodes = 2",
             {},
             "H100",
             4,
             2,
             2,
             "H100-2x"},
        Case{"NumGpusShrinksTheVariant",
             kFourH100,
             {Env("NUM_GPUS", "2")},
             "H100",
             2,
             1,
             2,
             "H100-2x"},
        Case{"GpuTypeVariableWithAVariant",
             kFourH100,
             {Env("SYNTH_GPU_TYPE", "H100-8x")},
             "H100",
             8,
             1,
             8,
             "H100-8x"},
        Case{"GpuTypeVariableWithAType",
             kFourH100,
             {Env("SYNTH_GPU_TYPE", "A100")},
             "A100",
             4,
             1,
             4,
             "A100-4x"},
        Case{"CpuVariantOverAFileForGpus",
             kFourH100,
             {Set("compute.variant", "CPU-2x")},
             "CPU",
             2,
             1,
             2,
             "CPU-2x"},
        Case{"NodesKeepThePerNodeShare",
             kFourH100,
             {Set("compute.nodes", "2")},
             "H100",
             8,
             2,
             4,
             "H100-4x"},
        Case{"NodesAndCount",
             kFourH100,
             {Set("compute.nodes", "2"), Set("compute.gpu_count", "4")},
             "H100",
             4,
             2,
             2,
             "H100-2x"},
        Case{"PerNode", kFourH100, {Set("compute.gpus_per_node", "8")}, "H100", 8, 1, 8, "H100-8x"},
        Case{"PerNodeAndCount",
             kFourH100,
             {Set("compute.gpus_per_node", "4"), Set("compute.gpu_count", "8")},
             "H100",
             8,
             2,
             4,
             "H100-4x"},
        Case{"VariantAndCountOverridden",
             kFourH100,
             {Set("compute.variant", "H100-8x"), Set("compute.gpu_count", "16")},
             "H100",
             16,
             2,
             8,
             "H100-8x"},
        Case{"OverrideOfACopyIsOneOfTheOriginal",
             kFourH100,
             {Set("data.topology.total_gpus", "2")},
             "H100",
             2,
             1,
             2,
             "H100-2x"},
        Case{"CountOverAVariantAlone",
             "[compute]\nvariant = \"H100-8x\"",
             {Env("NUM_GPUS", "2")},
             "H100",
             2,
             1,
             2,
             "H100-2x"}),
    [](const auto& info) { return std::string(info.param.name); });

struct Wrong {
  std::string_view name;
  std::string_view text;
  std::string_view key;
  int line;
  std::string_view says;

  friend void PrintTo(const Wrong& w, std::ostream* out) { *out << w.name; }
};

class TopologyProblemTest : public ::testing::TestWithParam<Wrong> {};

TEST_P(TopologyProblemTest, IsOneProblemAtItsLine) {
  const Wrong& w = GetParam();
  const Resolution r = ResolveText(std::string(kHead) + std::string(w.text));
  ASSERT_EQ(r.problems.size(), 1u) << Describe(r.problems);
  EXPECT_EQ(r.problems[0].key, w.key);
  EXPECT_EQ(r.problems[0].line, w.line);
  EXPECT_THAT(r.problems[0].message, HasSubstr(std::string(w.says)));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, TopologyProblemTest,
    ::testing::Values(
        Wrong{"NothingNamesGpus", "[compute]\ngpu_count = 4", "compute.gpu_type", 0,
              "say which GPUs"},
        Wrong{"ProductIsNotTheCount",
              "[compute]\ngpu_type = \"H100\"\ngpu_count = 8\nnodes = 2\ngpus_per_node = 3",
              "compute.gpu_count", 6, "gpu_count = 6 would agree"},
        Wrong{"CountDoesNotDivide", "[compute]\ngpu_type = \"H100\"\ngpu_count = 5\nnodes = 2",
              "compute.gpu_count", 6, "4 or 6 would do"},
        Wrong{"VariantOfAnotherType", "[compute]\ngpu_type = \"A100\"\nvariant = \"H100-4x\"",
              "compute.variant", 6, "\"A100-4x\" would agree"},
        Wrong{"VariantOfAnotherCount",
              "[compute]\ngpu_type = \"H100\"\ngpus_per_node = 2\nvariant = \"H100-4x\"",
              "compute.variant", 7, "\"H100-2x\" would agree"},
        Wrong{"VariantWithoutCount", "[compute]\nvariant = \"H100\"", "compute.variant", 5,
              "must be TYPE-Nx"},
        Wrong{"VariantOfNone", "[compute]\nvariant = \"H100-0x\"", "compute.variant", 5,
              "must be TYPE-Nx"},
        Wrong{"VariantOfTooMany", "[compute]\nvariant = \"H100-99999999999x\"", "compute.variant",
              5, "must be TYPE-Nx"},
        Wrong{"ContainersAreNotNodes",
              "[compute]\nvariant = \"H100-4x\"\n[data.topology]\ncontainer_count = 1",
              "data.topology.container_count", 7, "contradicts compute.gpu_count = 4"},
        Wrong{"CopyOfTheTotal",
              "[compute]\nvariant = \"H100-4x\"\nnodes = 1\n[data.topology]\ntotal_gpus = 8",
              "data.topology.total_gpus", 8, "total_gpus = 4 would agree"},
        Wrong{"CopyOfTheNodes",
              "[compute]\nvariant = \"H100-4x\"\nnodes = 1\n[data.topology]\nnodes = 2",
              "data.topology.nodes", 8, "contradicts compute.nodes = 1"},
        Wrong{"CopyOfTheVariant",
              "[compute]\nvariant = \"H100-4x\"\n[data.topology]\nvariant = \"H100-8x\"",
              "data.topology.variant", 7, "contradicts compute.variant = H100-4x"},
        Wrong{"EmptyType", "[compute]\ngpu_type = \"\"", "compute.gpu_type", 5, "but is empty"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(TopologyOptionsTest, AServerWithOneTypeSuppliesIt) {
  const Resolution r = Resolve(std::string(kHead), "job.toml", {}, {.default_gpu_type = "CPU"});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.compute.variant, "CPU-1x");
  EXPECT_EQ(OriginOf(r, "compute.gpu_type"), "derived: the only type there is");
}

TEST(TopologyBlameTest, ACopyIsBlamedUnderItsOwnKeyAndLine) {
  const Resolution r = ResolveText(
      std::string(kHead) + "[compute]\nvariant = \"H100-4x\"\n[data.topology]\ntotal_gpus = 3\n");
  EXPECT_EQ(Describe(r.problems),
            "data.topology.total_gpus:7: data.topology.total_gpus = 3 (job.toml:7) is not "
            "compute.nodes = 1 (derived: one node) * compute.gpus_per_node = 4 "
            "(derived: compute.variant); total_gpus = 4 would agree\n");
}

TEST(TopologyBlameTest, EveryCopyThatContradictsIsNamed) {
  const std::string problems =
      Describe(ResolveText(std::string(kHead) +
                           "[compute]\nvariant = \"H100-4x\"\n[data.topology]\ntotal_gpus = 3\n"
                           "container_count = 2\n")
                   .problems);
  EXPECT_THAT(problems, HasSubstr("data.topology.total_gpus:7: "));
  EXPECT_THAT(problems, HasSubstr("data.topology.container_count:8: "));
}

TEST(TopologyBlameTest, AValueKnowsTheKeyThatAPersonWroteForIt) {
  const Resolution r = ResolveText(std::string(kHead) + "[compute]\nvariant = \"B200-2x\"\n");
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  for (const ResolvedValue& value : r.values) {
    if (value.key != "compute.gpu_type" && value.key != "compute.gpus_per_node") continue;
    EXPECT_EQ(value.written_as, "compute.variant") << value.key;
    EXPECT_EQ(value.line, 5) << value.key;
  }
}

// Beside a variant, a count of all GPUs cannot ask for a second node.
TEST(TopologyTest, ACountThatContradictsTheVariantIsAProblemAlsoWhereItIsAMultiple) {
  const Resolution r = ResolveText(
      std::string(kHead) + "[compute]\nvariant = \"H100-4x\"\n[data.topology]\ntotal_gpus = 8\n");
  EXPECT_EQ(Describe(r.problems),
            "data.topology.total_gpus:7: data.topology.total_gpus = 8 (job.toml:7) is not "
            "compute.nodes = 1 (derived: one node) * compute.gpus_per_node = 4 "
            "(derived: compute.variant); total_gpus = 4 would agree\n");
  EXPECT_TRUE(ResolveText(std::string(kHead) + "[compute]\nvariant = \"H100-4x\"\nnodes = 2\n"
                                               "[data.topology]\ntotal_gpus = 8\n")
                  .ok());
}

}  // namespace
}  // namespace sft::spec
