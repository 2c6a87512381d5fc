#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/plan/step_time.h"
#include "tests/unit/common/plan/experts.h"
#include "tests/unit/common/plan/jobs.h"

// Steps of mixtures of experts that were measured on H200s (docs/benchmarks/mixtures.md, whose
// table has these predictions) beside what the plan says of them.

namespace sft::plan {
namespace {

std::string GptOss(int layers, int experts, const char* more = "") {
  return fmt::format(R"({{"model_type": "gpt_oss", "num_hidden_layers": {},
      "num_local_experts": {}{}}})",
                     layers, experts, more);
}

constexpr const char kMxfp4[] = R"(, "quantization_config": {"quant_method": "mxfp4"})";

// The jobs of deploy/gpu/bench: four rows of 4,096 tokens a GPU.
spec::JobSpec Measured(int gpus) {
  spec::JobSpec job = Lora(16, {"q_proj", "k_proj", "v_proj", "o_proj", "mlp.experts.gate_up_proj",
                                "mlp.experts.down_proj"});
  job.compute.gpu_type = "H200";
  job.compute.gpu_count = job.compute.gpus_per_node = gpus;
  job.quantization.bits = 0;
  job.hyperparameters.per_device_batch = 0;
  job.hyperparameters.gradient_accumulation_steps = 0;
  job.hyperparameters.global_batch = 4 * gpus;
  job.hyperparameters.sequence_length = 4096;
  job.data.packing = false;
  return job;
}

spec::JobSpec InFp8() {
  spec::JobSpec job = Measured(1);
  job.training.matmul = spec::Matmul::kFp8;
  return job;
}

spec::JobSpec InFourBits() {
  spec::JobSpec job = Measured(1);
  job.training.use_qlora = true;
  job.quantization.bits = 4;
  return job;
}

spec::JobSpec Whole() {
  spec::JobSpec job = Measured(4);
  job.training.mode = spec::Mode::kFullFinetune;
  job.training.deterministic = false;
  job.parallelism.sharding = spec::Sharding::kFullShard;
  job.hyperparameters.optimizer = spec::Optimizer::kAdamWBf16;
  job.hyperparameters.master_weights = spec::MasterWeights::kBf16;
  return job;
}

struct MeasuredStep {
  const char* name;
  std::string model;
  spec::JobSpec job;
  int64_t deep_layers;  // that make their norms again; the others nothing
  int64_t carried;
  double predicted, measured;  // tokens/s of all GPUs

  friend void PrintTo(const MeasuredStep& step, std::ostream* out) { *out << step.name; }
};

class MeasuredStepTest : public testing::TestWithParam<MeasuredStep> {};

TEST_P(MeasuredStepTest, IsPredictedWithinTenPercent) {
  const MeasuredStep& step = GetParam();
  const auto problem = MakeProblem(ParsedModel(step.model), step.job, 4096);
  ASSERT_TRUE(problem.ok()) << problem.status();
  const ExecutionPlan run{.rows = 4,
                          .deep = Recompute::kNorms,
                          .deep_layers = step.deep_layers,
                          .carried = step.carried,
                          .logits_bytes = int64_t{1} << 30};
  const double tokens = static_cast<double>(4 * 4096 * problem->ranks());
  const double predicted = tokens / PredictTime(*problem, run, *FindGpu("H200")).total();
  EXPECT_NEAR(predicted, step.predicted, 0.5);
  EXPECT_NEAR(predicted, step.measured, 0.1 * step.measured);
}

INSTANTIATE_TEST_SUITE_P(
    OnH200s, MeasuredStepTest,
    testing::Values(
        MeasuredStep{"LoraGptOss20b", GptOss(24, 32), Measured(1), 2, 0, 29'307, 27'767},
        MeasuredStep{"LoraGptOss20bFp8", GptOss(24, 32), InFp8(), 2, 0, 36'256, 34'350},
        MeasuredStep{"LoraGptOss20bFourGpus", GptOss(24, 32), Measured(4), 2, 0, 117'093, 108'549},
        MeasuredStep{"LoraQwen3Of30B", kQwen3Of30B, Measured(1), 4, 0, 22'123, 21'309},
        MeasuredStep{"QloraGptOss120b", GptOss(36, 128, kMxfp4), InFourBits(), 32, 5, 16'191,
                     15'090},
        MeasuredStep{"FullGptOss20bFourGpus", GptOss(24, 32), Whole(), 4, 0, 65'801, 65'587}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sft::plan
