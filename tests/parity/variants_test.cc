#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "common/spec/visit.h"
#include "tests/parity/golden_case.h"
#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/generate/generator.h"
#include "worker/engine/model/config.h"
#include "worker/engine/train/delivery.h"

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
                                         NoiseCase{"neftune_positions", "gpt2_untied"},
                                         NoiseCase{"neftune_layer_inputs", "gemma4_e_tied"}),
                         [](const auto& info) { return std::string(info.param.name); });

struct AdapterCase {
  const char* name;
  const char* model;

  friend void PrintTo(const AdapterCase& adapter, std::ostream* out) { *out << adapter.name; }
};

class AdapterVariantTest : public VariantTest, public testing::WithParamInterface<AdapterCase> {
 protected:
  AdapterVariantTest() : adapter_(ReadAdapter(dir() / "adapter", prefix())) {
    job_ = PlainJob(adapter_.config);
    job_.lora.target_modules = adapter_.config.target_modules;
    EXPECT_TRUE(spec::ParseEnum(adapter_.config.bias, &job_.lora.bias));
  }

  static std::filesystem::path dir() { return GoldenDir() / "variants" / GetParam().name; }
  static std::filesystem::path model_dir() { return ModelOf(GetParam().model); }
  static std::string prefix() { return ReadConfig(model_dir()).prefix; }
  static GoldenTensors OfPeft() { return GoldenTensors(dir() / "lora.safetensors"); }

  std::unique_ptr<TrainingModel> Model() {
    auto model = std::make_unique<TrainingModel>(job_, model_dir(), *comm_);
    model->LoadAdapter(adapter_);
    return model;
  }

  Adapter adapter_;
  spec::JobSpec job_;
};

TEST_P(AdapterVariantTest, LogitsLossAndGradientsEqualPeft) {
  const GoldenTensors golden = OfPeft();
  const auto model = Model();
  const MicroBatch batch = RowsOf(GetParam().model);
  {
    const at::NoGradGuard no_grad;
    EXPECT_LT(RelativeError(model->Logits(batch), golden.Get("logits")), kTolerance);
  }
  const double loss = MeanLossAndGradients(*model, batch);
  EXPECT_NEAR(loss, golden.Get("loss").item<float>(), kTolerance * loss);
  EXPECT_EQ(model->store().parts().size(), golden.size() - 2) << "peft trains other parameters";
  ExpectGradients(*model, golden, static_cast<double>(batch.loss_tokens()), "base_model.model.");
}

TEST_P(AdapterVariantTest, TheDeliveredAdapterHoldsWhatPeftSaves) {
  const auto model = Model();
  const TempDir out;
  const DeliveryResult result = Deliver(
      *model, job_, {.target = out / "adapter", .model_dir = {}, .model_name = "tiny"}, *comm_);
  EXPECT_TRUE(result.consistency.consistent);
  ASSERT_NO_FATAL_FAILURE(ExpectTensorsOfPeft(out / "adapter", dir() / "adapter"));
  const AdapterConfig config = ReadAdapter(out / "adapter", prefix()).config;
  EXPECT_EQ(config.bias, adapter_.config.bias);
  EXPECT_EQ(config.use_rslora, adapter_.config.use_rslora);
  EXPECT_EQ(config.use_dora, adapter_.config.use_dora);
  EXPECT_EQ(config.rank_pattern, adapter_.config.rank_pattern);
  EXPECT_EQ(config.alpha_pattern, adapter_.config.alpha_pattern);
  EXPECT_EQ(config.ensure_weight_tying, adapter_.config.ensure_weight_tying);
  for (const std::string& module : config.modules_to_save) {
    EXPECT_THAT(adapter_.config.modules_to_save, testing::Contains(module));
  }
  EXPECT_EQ(config.modules_to_save.empty(), adapter_.config.modules_to_save.empty());
}

TEST_P(AdapterVariantTest, GenerationTakesAllOfIt) {
  Generator generator({.model_dir = model_dir(), .adapter_dir = dir() / "adapter"});
  const GoldenTensors rows(model_dir() / "rows.safetensors");
  const Tensor ids = rows.Get("input_ids")[0].to(at::kInt).contiguous();
  const std::vector<int32_t> tokens(ids.const_data_ptr<int32_t>(),
                                    ids.const_data_ptr<int32_t>() + ids.numel());
  EXPECT_LT(RelativeError(generator.Logits(tokens), OfPeft().Get("logits")[0]), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Adapters, AdapterVariantTest,
    testing::Values(
        AdapterCase{"whole_untied", "llama_biases_rope_linear_untied"},
        AdapterCase{"whole_norms", "qwen3_tied"}, AdapterCase{"whole_one_norm", "qwen3_tied"},
        AdapterCase{"whole_tied", "llama_rope_llama3_tied"},
        AdapterCase{"whole_positions", "gpt2_untied"},
        AdapterCase{"whole_multimodal", "gemma3_multimodal_tied"},
        AdapterCase{"ranks", "qwen3_tied"}, AdapterCase{"ranks_fused", "phi3_untied"},
        AdapterCase{"ranks_dora", "llama_biases_rope_linear_untied"},
        AdapterCase{"dora", "llama_biases_rope_linear_untied"},
        AdapterCase{"dora_some", "qwen2_sliding_untied"}, AdapterCase{"dora_merged", "phi3_untied"},
        AdapterCase{"dora_transposed", "gpt2_tied"}, AdapterCase{"dora_post_norms", "gemma3_tied"},
        AdapterCase{"dora_and_whole", "qwen3_sliding_rope_yarn_untied"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::engine
