#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "tests/parity/golden_case.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/optim/grad_norm.h"

// Optimizer steps of SmolLM2-135M-Instruct against transformers, peft and torch's AdamW
// (tests/parity/series.py says what a step is): of twenty those that StepsToRun says.

namespace sft::engine {
namespace {

using at::Tensor;

struct Series {
  const char* kind;
  int steps;
  double tolerance;  // of each step's loss

  friend void PrintTo(const Series& s, std::ostream* out) { *out << s.kind; }
};

std::filesystem::path ModelDir() { return SFT_SOURCE_DIR "/build/demo/model"; }

// series.py's initial_a: a linear's A from the number of its tensor alone.
uint64_t SplitMix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

Tensor InitialA(uint64_t tensor, int64_t rank, int64_t in) {
  constexpr uint64_t kSeed = 0x5F7;
  Tensor a = at::empty({rank, in}, at::kFloat);
  float* values = a.mutable_data_ptr<float>();
  const float bound = static_cast<float>(1.0 / std::sqrt(static_cast<double>(in)));
  for (int64_t k = 0; k < rank * in; ++k) {
    const uint64_t u = SplitMix64(kSeed + (tensor << 32) + static_cast<uint64_t>(k)) >> 40;
    values[k] = (static_cast<float>(u) * 0x1p-23f - 1.0f) * bound;
  }
  return a;
}

Adapter InitialAdapter(const ModelLayout& layout) {
  Adapter adapter;
  uint64_t number = 0;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      if (param.role == ParamRole::kLoraA) {
        adapter.pairs.push_back(
            {std::string(param.module()), InitialA(number++, param.shape[0], param.shape[1]), {}});
      } else if (param.role == ParamRole::kLoraB) {
        const auto pair = std::find_if(
            adapter.pairs.begin(), adapter.pairs.end(),
            [&](const LoraPair& candidate) { return candidate.module == param.module(); });
        pair->b = at::zeros(param.shape, at::kFloat);
      }
    }
  }
  return adapter;
}

spec::JobSpec Job(const std::string& kind) {
  const bool full = kind.starts_with("fft");
  spec::JobSpec job = PlainJob(full ? spec::Mode::kFullFinetune : spec::Mode::kLora);
  job.training.use_qlora = kind == "qlora" || kind == "lora_8bit";
  if (kind == "lora_8bit") job.quantization.bits = 8;
  job.lora.r = 8;
  job.lora.alpha = 16;
  return job;
}

class SeriesTest : public testing::TestWithParam<Series> {};

TEST_P(SeriesTest, LossesEqualTheReferenceStepByStep) {
  const Series& series = GetParam();
  const std::string kind = series.kind;
  std::ifstream file(GoldenDir() / "series" / (kind + ".json"));
  const nlohmann::json golden = nlohmann::json::parse(file);
  const GoldenTensors tokens(GoldenDir() / "series/tokens.safetensors");
  const Tensor input_ids = tokens.Get("input_ids"), labels = tokens.Get("labels");
  const at::NoGradGuard no_grad;
  const auto comm = MakeLocalCommunicator(at::kCPU);
  TrainingModel model(Job(kind), ModelDir(), *comm);
  if (!kind.starts_with("fft")) model.LoadAdapter(InitialAdapter(model.layout()));
  const std::vector<double> losses = golden["loss"], norms = golden["grad_norm"];
  const std::vector<double> rates = golden["learning_rate"];
  const double max_norm = golden["max_grad_norm"].get<double>();
  std::vector<double> our_losses, our_norms;
  ASSERT_EQ(std::ssize(losses), series.steps);
  ASSERT_EQ(std::ssize(rates), series.steps);
  for (int step = 0; step < StepsToRun(series.steps); ++step) {
    const MicroBatch batch = RowsBatch(input_ids[step], labels[step]);
    const double scale = 1.0 / static_cast<double>(batch.loss_tokens());
    model.BeginStep();
    const double loss = model.ForwardBackward(batch, step, 0, true).item<double>() * scale;
    const double norm = model.ReduceGradients(scale);
    model.Update(rates[step], scale * ClipFactor(norm, max_norm));
    our_losses.push_back(loss);
    our_norms.push_back(norm);
    EXPECT_NEAR(loss, losses[step], series.tolerance * losses[step]) << "step " << step + 1;
    EXPECT_NEAR(norm, norms[step], 100 * series.tolerance * norms[step]) << "step " << step + 1;
  }
  // In the report that --gtest_output writes.
  RecordProperty("loss", DumpJson(nlohmann::json(our_losses)));
  RecordProperty("grad_norm", DumpJson(nlohmann::json(our_norms)));
}

// Full fine-tuning at a constant 1e-3 is compared for 8 steps: from step 9 on the reference does
// not agree with itself when only its rounding changes (2e-4 then, 4e-3 at step 11; figures in
// README.md). The 20 steps reach the same rate after a warm-up, with clipping and decay; the losses
// of the reference on two machines are 7e-5 apart there.
INSTANTIATE_TEST_SUITE_P(SmolLm2, SeriesTest,
                         testing::Values(Series{"lora", 20, 1e-4}, Series{"fft", 20, 2e-4},
                                         Series{"fft_constant", 8, 1e-4}, Series{"qlora", 20, 1e-3},
                                         Series{"lora_8bit", 20, 1e-4}),
                         [](const auto& info) { return std::string(info.param.kind); });

}  // namespace
}  // namespace sft::engine
