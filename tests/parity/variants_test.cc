#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "tests/parity/golden_case.h"
#include "worker/engine/checkpoint/adapter.h"

// Variants of LoRA, and noise on embeddings, against transformers and peft.

namespace sft::engine {
namespace {

using at::Tensor;

constexpr double kTolerance = 1e-5;

// One of the tiny models, and what the references compute with it.
class VariantTest : public testing::Test {
 protected:
  static std::filesystem::path ModelOf(const std::string& model) {
    return GoldenDir() / "families" / model;
  }
  static GoldenTensors Golden(const std::string& name) {
    return GoldenTensors(GoldenDir() / "variants" / (name + ".safetensors"));
  }
  static MicroBatch RowsOf(const std::string& model) {
    const GoldenTensors rows(ModelOf(model) / "rows.safetensors");
    return RowsBatch(rows.Get("input_ids"), rows.Get("labels"));
  }

  std::unique_ptr<Communicator> comm_ = MakeLocalCommunicator(at::kCPU);
};

TEST_F(VariantTest, FiveStepsOfLoraPlusEqualPeft) {
  const at::NoGradGuard no_grad;
  const std::string name = "qwen2_sliding_untied";
  const GoldenTensors golden = Golden("loraplus");
  const Adapter adapter = ReadAdapter(ModelOf(name) / "bias_adapter");
  spec::JobSpec job = PlainJob(adapter.config);
  job.lora.target_modules = adapter.config.target_modules;
  job.lora.bias = spec::Bias::kLoraOnly;
  job.lora.loraplus_lr_ratio = 8.0;
  job.hyperparameters.weight_decay = 0.1;
  TrainingModel model(job, ModelOf(name), *comm_);
  model.LoadAdapter(adapter);
  const MicroBatch batch = RowsOf(name);
  const Tensor losses = golden.Get("losses");
  for (int64_t step = 0; step < losses.numel(); ++step) {
    const double loss = losses[step].item<float>();
    EXPECT_NEAR(MeanLossAndGradients(model, batch), loss, kTolerance * loss) << step;
    model.Update(1e-3, 1.0 / static_cast<double>(batch.loss_tokens()));
  }
  EXPECT_EQ(model.store().parts().size(), golden.size() - 1) << "peft trains other parameters";
  for (const TrainablePart& part : model.store().parts()) {
    const ParamInfo& param = model.layout().units[part.unit].params[part.param];
    // Where a gradient is rounding alone, AdamW's first steps take its sign.
    EXPECT_LT(RelativeError(part.master, golden.Get("base_model.model." + param.name)), 1e-4)
        << param.name;
  }
}

struct NoiseCase {
  const char* name;
  const char* model;

  friend void PrintTo(const NoiseCase& noise, std::ostream* out) { *out << noise.name; }
};

class NoiseParityTest : public VariantTest, public testing::WithParamInterface<NoiseCase> {
 protected:
  static spec::JobSpec Job() {
    spec::JobSpec job = PlainJob(spec::Mode::kFullFinetune);
    job.hyperparameters.neftune_noise_alpha = 5.0;
    return job;
  }
};

TEST_P(NoiseParityTest, LossAndGradientUnderNoiseEqualTransformers) {
  const GoldenTensors golden = Golden(GetParam().name);
  TrainingModel model(Job(), ModelOf(GetParam().model), *comm_);
  const MicroBatch batch = RowsOf(GetParam().model);
  const double loss = MeanLossAndGradients(model, batch);
  EXPECT_NEAR(loss, golden.Get("loss").item<float>(), kTolerance * loss);
  const ParamInfo& embedding = model.layout().units[0].params[0];
  const std::string grad = "grad." + embedding.name;
  const Tensor gradient = model.gradients()[0] / static_cast<double>(batch.loss_tokens());
  EXPECT_LT(RelativeError(gradient, golden.Get(grad)), kTolerance);
  // The noise is no small thing, and validation has none.
  const GoldenTensors plain(ModelOf(GetParam().model) / "rows.safetensors");
  const double without = plain.Get("loss").item<float>();
  EXPECT_GT(std::abs(loss - without), 100 * kTolerance * loss);
  const at::NoGradGuard no_grad;
  const double validated =
      model.Loss(batch).item<double>() / static_cast<double>(batch.loss_tokens());
  EXPECT_NEAR(validated, without, kTolerance * without);
}

INSTANTIATE_TEST_SUITE_P(Models, NoiseParityTest,
                         testing::Values(NoiseCase{"neftune_plain", "qwen3_tied"},
                                         NoiseCase{"neftune_scaled_before", "gemma3_tied"},
                                         NoiseCase{"neftune_scaled_after", "granite_tied"},
                                         NoiseCase{"neftune_positions", "gpt2_untied"}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::engine
