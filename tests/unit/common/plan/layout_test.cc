#include "common/plan/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/spec/layout.h"
#include "tests/unit/common/plan/jobs.h"
#include "tests/unit/common/plan/shapes.h"

namespace sft::plan {
namespace {

constexpr int64_t kH100 = 84'500'000'000;

spec::JobSpec OnGpus(int gpus, spec::JobSpec job, int nodes = 1) {
  job.compute.gpu_count = gpus;
  job.compute.nodes = nodes;
  job.compute.gpus_per_node = gpus / nodes;
  return job;
}

spec::JobSpec FullAuto(int64_t rows, int64_t tokens) {
  spec::JobSpec job = Auto(rows, tokens);
  job.training.mode = spec::Mode::kFullFinetune;
  job.training.use_qlora = false;
  job.quantization.bits = 0;
  return job;
}

spec::JobSpec LoraAuto(int64_t rows, int64_t tokens) {
  spec::JobSpec job = FullAuto(rows, tokens);
  job.training.mode = spec::Mode::kLora;
  return job;
}

struct Choice {
  std::vector<spec::JobSpec> jobs;
  std::vector<PlannedLayout> planned;
  std::string text;  // of the one that is chosen
};

std::vector<spec::JobSpec> JobsOf(const spec::JobSpec& job) {
  std::vector<spec::JobSpec> jobs;
  for (const spec::Layout& layout : spec::LayoutsFor(job.compute)) {
    spec::JobSpec other = job;
    other.parallelism.sharding = layout.sharding;
    other.parallelism.pipeline_parallel_size = layout.stages;
    other.parallelism.virtual_pipeline_parallel_size = layout.pieces;
    other.parallelism.context_parallel_size = layout.context;
    other.parallelism.tensor_parallel_size = layout.tensor;
    // Each rank has a row at least.
    auto& h = other.hyperparameters;
    if (h.global_batch % other.data_ranks() != 0) continue;
    if (h.per_device_batch > 0) {
      h.gradient_accumulation_steps = h.global_batch / other.data_ranks() / h.per_device_batch;
    }
    jobs.push_back(other);
  }
  return jobs;
}

Choice Choose(const ModelShape& shape, const spec::JobSpec& job, int64_t gpu_bytes = kH100) {
  Choice choice;
  choice.jobs = JobsOf(job);
  choice.planned = ChooseLayout(shape, NearestGpu(job.compute.gpu_type), gpu_bytes, choice.jobs);
  if (!choice.planned.empty()) {
    choice.text = spec::ToText(spec::LayoutOf(choice.jobs[choice.planned[0].job]));
  }
  return choice;
}

TEST(LayoutTest, AModelThatEachGpuHoldsIsWholeOnEach) {
  const Choice choice = Choose(Qwen3Of8B(), OnGpus(8, Auto(64, 2048)));
  EXPECT_EQ(choice.text, "fsdp = false");
  ASSERT_EQ(choice.planned.size(), 2u);
  EXPECT_NE(choice.planned[1].job, choice.planned[0].job);
  EXPECT_LT(choice.planned[1].tokens_per_second,
            choice.planned[0].tokens_per_second * (1 + kWorthALayout));
}

TEST(LayoutTest, AModelThatNoGpuHoldsIsDivided) {
  EXPECT_EQ(Choose(Qwen3Of32B(), OnGpus(8, FullAuto(64, 4096))).text, "fsdp = true");
  EXPECT_EQ(Choose(LlamaOf70B(), OnGpus(2, FullAuto(64, 4096))).text, "") << "no layout fits";
  // Rows of one sequence are too few to gather each layer over a network: between nodes the layers
  // are divided, within them each layer.
  spec::JobSpec job = FullAuto(64, 2048);
  job.hyperparameters.per_device_batch = 1;
  job.hyperparameters.gradient_accumulation_steps = 4;
  EXPECT_THAT(Choose(LlamaOf70B(), OnGpus(16, job, 2)).text,
              ::testing::HasSubstr("fsdp = true, pipeline_parallel_size = 2"));
}

TEST(LayoutTest, FewerRowsThanGpusShareTheirTokens) {
  const Choice choice = Choose(Qwen3Of8B(), OnGpus(8, Auto(1, 131'072)));
  EXPECT_THAT(choice.text, ::testing::HasSubstr("context_parallel_size = 8")) << choice.text;
}

// As many rows as a job can ask for take no longer to plan than few.
TEST(LayoutTest, ABillionRowsAreChosenForAtOnce) {
  const absl::Time begin = absl::Now();
  const Choice choice = Choose(Qwen3Of8B(), OnGpus(8, Auto(1'000'000'000, 2048)));
  EXPECT_EQ(choice.text, "fsdp = false");
  spec::JobSpec job = OnGpus(8, LoraAuto(1'000'000'000, 2048));
  job.hyperparameters.per_device_batch = 1;
  EXPECT_FALSE(Choose(LlamaOf70B(), job).planned.empty());
  EXPECT_LT(absl::Now() - begin, absl::Seconds(60));
}

// The most precise with which any layout has room, not that of the first layout.
TEST(LayoutTest, PrecisionGoesBeforeSpeed) {
  spec::JobSpec job = FullAuto(64, 4096);
  job.hyperparameters.optimizer = spec::Optimizer::kAuto;
  job = OnGpus(8, job);
  const Choice choice = Choose(Qwen3Of8B(), job);
  ASSERT_FALSE(choice.planned.empty());
  PlanInput input{
      .shape = Qwen3Of8B(), .job = choice.jobs[choice.planned[0].job], .gpu = NearestGpu("H100")};
  input.memory_bytes = AllocatorBytes(input.job, kH100, false);
  EXPECT_EQ(WithPrecision(input).hyperparameters.optimizer, spec::Optimizer::kAdamW);
}

struct Case {
  const char* name;
  ModelShape (*shape)();
  spec::JobSpec job;
  int64_t gpu_bytes = kH100;

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

class LayoutCases : public ::testing::TestWithParam<Case> {};

// What is left out could not have been chosen, nor been second.
TEST_P(LayoutCases, TheChoiceIsThatOfPlansOfAll) {
  const Case& c = GetParam();
  const Choice choice = Choose(c.shape(), c.job, c.gpu_bytes);
  std::vector<PlannedLayout> all;
  for (size_t i = 0; i < choice.jobs.size(); ++i) {
    PlanInput input{
        .shape = c.shape(), .job = choice.jobs[i], .gpu = NearestGpu(c.job.compute.gpu_type)};
    input.memory_bytes = AllocatorBytes(input.job, c.gpu_bytes, false);
    const auto plan = MakePlan(input);
    if (plan.ok()) all.push_back({i, plan->tokens_per_second, plan->memory.reserved()});
  }
  ASSERT_EQ(choice.planned.size(), std::min<size_t>(2, all.size()));
  double fastest = 0;
  for (const PlannedLayout& each : all) fastest = std::max(fastest, each.tokens_per_second);
  const auto chosen = std::ranges::find_if(all, [&](const PlannedLayout& each) {
    return each.tokens_per_second * (1 + kWorthALayout) >= fastest;
  });
  ASSERT_NE(chosen, all.end());
  EXPECT_EQ(choice.planned[0].job, chosen->job);
  EXPECT_EQ(choice.planned[0].tokens_per_second, chosen->tokens_per_second);
  EXPECT_EQ(choice.planned[0].memory_bytes, chosen->memory_bytes);
  double second = 0;
  for (const PlannedLayout& each : all) {
    if (each.job != chosen->job) second = std::max(second, each.tokens_per_second);
  }
  if (choice.planned.size() > 1) {
    EXPECT_EQ(choice.planned[1].tokens_per_second, second);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, LayoutCases,
    ::testing::Values(Case{"Qlora8BOnEight", Qwen3Of8B, OnGpus(8, Auto(64, 2048))},
                      Case{"Full8BOnEight", Qwen3Of8B, OnGpus(8, FullAuto(64, 4096))},
                      Case{"LongRowsOnFour", Qwen3Of8B, OnGpus(4, Auto(4, 65'536))},
                      Case{"Lora70BOnFour", LlamaOf70B, OnGpus(4, LoraAuto(64, 2048))},
                      Case{"Lora32BOnTwoNodes", Qwen3Of32B, OnGpus(8, LoraAuto(32, 2048), 2)},
                      Case{"SmallModelOnSix", SmolLm2, OnGpus(6, FullAuto(24, 512))},
                      Case{"LittleMemory", Qwen3Of8B, OnGpus(8, Auto(32, 2048)), 14'000'000'000}),
    [](const auto& info) { return info.param.name; });

// Two H200, docs/benchmarks/splits.md.
TEST(LayoutTest, MeasuredLayoutsAreInTheOrderOfTheirPlans) {
  struct Row {
    ModelShape shape;
    int rows;  // of a step
    int stages, pieces;
    int micro_rows;
    double measured;
  };
  const Row rows[] = {{Qwen3Of8B(), 32, 1, 1, 0, 34'473},    {Qwen3Of8B(), 32, 2, 2, 4, 29'641},
                      {Qwen3Of8B(), 32, 2, 1, 2, 28'422},    {Qwen3Of600M(), 16, 1, 1, 0, 256'499},
                      {Qwen3Of600M(), 16, 2, 2, 2, 172'456}, {Qwen3Of600M(), 16, 2, 1, 2, 132'414}};
  double before = 0;
  for (const Row& row : rows) {
    spec::JobSpec job = OnGpus(2, Auto(row.rows, 2048));
    job.compute.gpu_type = "H200";
    job.data.loss_on = spec::LossOn::kAll;
    job.parallelism.pipeline_parallel_size = row.stages;
    job.parallelism.virtual_pipeline_parallel_size = row.pieces;
    if (row.micro_rows > 0) {
      job.hyperparameters.per_device_batch = row.micro_rows;
      job.hyperparameters.gradient_accumulation_steps = row.rows / row.micro_rows;
    }
    PlanInput input{.shape = row.shape, .job = job, .gpu = NearestGpu("H200")};
    input.memory_bytes = AllocatorBytes(job, 150'000'000'000, false);
    const auto plan = MakePlan(input);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_NEAR(plan->tokens_per_second / row.measured, 1, 0.20) << row.measured;
    if (row.stages > 1) {
      EXPECT_LT(plan->tokens_per_second, before) << row.measured;
    }
    before = plan->tokens_per_second;
  }
}

// What ranks exchange within blocks, where blocks are short: two H200, docs/benchmarks/splits.md.
TEST(LayoutTest, LayoutsOfShortBlocksAreInTheOrderThatWasMeasured) {
  enum Layout { kWhole, kShard, kContext, kTensor };
  struct Row {
    ModelShape shape;
    int64_t tokens;
    int rows;  // of a step
    bool recomputes;
    Layout layout;
    double measured;
  };
  const Row rows[] = {{Qwen3Of32B(), 1024, 2, false, kWhole, 8'532},
                      {Qwen3Of32B(), 1024, 2, false, kShard, 8'095},
                      {Qwen3Of32B(), 1024, 2, false, kContext, 7'496},
                      {Qwen3Of32B(), 1024, 2, false, kTensor, 7'230},
                      {Qwen3Of1700M(), 2048, 8, true, kShard, 59'613},
                      {Qwen3Of1700M(), 2048, 8, true, kContext, 29'341},
                      {Qwen3Of1700M(), 2048, 8, true, kTensor, 21'382}};
  double before = std::numeric_limits<double>::infinity();
  for (const Row& row : rows) {
    spec::JobSpec job = OnGpus(2, Auto(row.rows, row.tokens));
    job.compute.gpu_type = "H200";
    job.data.loss_on = spec::LossOn::kAll;
    job.parallelism.activation_checkpointing = row.recomputes;
    if (row.layout == kShard) job.parallelism.sharding = spec::Sharding::kFullShard;
    if (row.layout == kContext) job.parallelism.context_parallel_size = 2;
    if (row.layout == kTensor) job.parallelism.tensor_parallel_size = 2;
    if (row.recomputes) {
      job.hyperparameters.per_device_batch = 1;
      job.hyperparameters.gradient_accumulation_steps = row.layout == kShard ? 4 : 8;
    }
    PlanInput input{.shape = row.shape, .job = job, .gpu = NearestGpu("H200")};
    input.memory_bytes = AllocatorBytes(job, 150'000'000'000, false);
    const auto plan = MakePlan(input);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_NEAR(plan->tokens_per_second / row.measured, 1, 0.15)
        << row.layout << " " << row.measured;
    // The 1.7B begins anew.
    if (row.layout != kShard || !row.recomputes) {
      EXPECT_LT(plan->tokens_per_second, before);
    }
    before = plan->tokens_per_second;
  }
}

}  // namespace
}  // namespace sft::plan
