#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/plan/execution.h"
#include "common/plan/tensors.h"
#include "common/spec/visit.h"
#include "tests/parity/golden_case.h"
#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/generate/generator.h"
#include "worker/engine/train/delivery.h"

// Every family against transformers and peft: logits, loss and the gradient of every parameter.

namespace sft::engine {
namespace {

using at::Tensor;

class FamilyParityTest : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path dir() const { return GoldenDir() / "families" / GetParam(); }
  GoldenTensors Read(const char* file) const { return GoldenTensors(dir() / file); }
  // The whole model, delivered into `target` beside what its base has.
  ModelFiles Delivered(const TrainingModel& model, const spec::JobSpec& job,
                       const std::filesystem::path& target) const {
    const DeliveryResult result =
        Deliver(model, job, {.target = target, .model_dir = dir(), .model_name = "tiny"}, *comm_);
    EXPECT_TRUE(result.consistency.consistent);
    return ModelFiles::Open(target);
  }
  std::unique_ptr<Communicator> comm_ = MakeLocalCommunicator(at::kCPU);
};

TEST_P(FamilyParityTest, LogitsEqualTransformers) {
  const GoldenTensors golden = Read("rows.safetensors");
  TrainingModel model(PlainJob(spec::Mode::kFullFinetune), dir(), *comm_);
  const at::NoGradGuard no_grad;
  const Tensor logits = model.Logits(RowsBatch(golden.Get("input_ids"), golden.Get("labels")));
  EXPECT_LT(RelativeError(logits, golden.Get("logits")), kLogitsTolerance);
}

TEST_P(FamilyParityTest, GradientsOfAllParametersEqualAutograd) {
  const GoldenTensors golden = Read("rows.safetensors");
  TrainingModel model(PlainJob(spec::Mode::kFullFinetune), dir(), *comm_);
  const MicroBatch batch = RowsBatch(golden.Get("input_ids"), golden.Get("labels"));
  const double loss = MeanLossAndGradients(model, batch);
  EXPECT_NEAR(loss, golden.Get("loss").item<float>(), kLossTolerance * loss);
  ExpectGradients(model, golden, static_cast<double>(batch.loss_tokens()), "");
}

// Whatever is computed again, keys and values that several layers attend to as well.
TEST_P(FamilyParityTest, RecomputationGivesTheSameBits) {
  const GoldenTensors golden = Read("rows.safetensors");
  const MicroBatch batch = RowsBatch(golden.Get("input_ids"), golden.Get("labels"));
  const spec::JobSpec job = PlainJob(spec::Mode::kFullFinetune);
  std::vector<Tensor> expected;
  for (int level = 0; level < plan::kRecomputeLevels; ++level) {
    plan::ExecutionPlan run = plan::Unplanned(job, plan::Device::kCpu);
    run.deep = run.shallow = static_cast<plan::Recompute>(level);
    TrainingModel model(job, dir(), *comm_, run);
    MeanLossAndGradients(model, batch);
    for (size_t i = 0; i < model.gradients().size(); ++i) {
      const Tensor& gradient = model.gradients()[i];
      if (level == 0) expected.push_back(gradient.clone());
      EXPECT_TRUE(at::equal(gradient, expected[i])) << "level " << level << ", part " << i;
    }
  }
}

class PackedParityTest : public FamilyParityTest {};

TEST_P(PackedParityTest, PackedDocumentsEqualThemOneByOne) {
  const GoldenTensors golden = Read("packed.safetensors");
  const Tensor lengths = golden.Get("document_lengths").to(at::kLong);
  const std::vector<int64_t> documents(lengths.const_data_ptr<int64_t>(),
                                       lengths.const_data_ptr<int64_t>() + lengths.numel());
  const MicroBatch batch = PackedBatch(golden.Get("input_ids"), golden.Get("labels"), documents);
  TrainingModel model(PlainJob(spec::Mode::kFullFinetune), dir(), *comm_);
  const double loss = MeanLossAndGradients(model, batch);
  EXPECT_NEAR(loss, golden.Get("loss").item<float>(), kLossTolerance * loss);
  ExpectGradients(model, golden, static_cast<double>(batch.loss_tokens()), "");
}

TEST_P(FamilyParityTest, AdapterLogitsLossAndGradientsEqualPeft) {
  const GoldenTensors golden = Read("lora.safetensors");
  const GoldenTensors rows = Read("rows.safetensors");
  const Adapter adapter = ReadAdapter(dir() / "adapter", ReadConfig(dir()).prefix);
  spec::JobSpec job = PlainJob(adapter.config);
  job.lora.target_modules = {"all-linear"};
  TrainingModel model(job, dir(), *comm_);
  model.LoadAdapter(adapter);
  const MicroBatch batch = RowsBatch(rows.Get("input_ids"), rows.Get("labels"));
  {
    const at::NoGradGuard no_grad;
    EXPECT_LT(RelativeError(model.Logits(batch), golden.Get("logits")), kLogitsTolerance);
  }
  const double loss = MeanLossAndGradients(model, batch);
  EXPECT_NEAR(loss, golden.Get("loss").item<float>(), kLossTolerance * loss);
  ExpectGradients(model, golden, static_cast<double>(batch.loss_tokens()), "base_model.model.");
}

// Loads into PEFT as it is: its names, its values, and targets that it finds the modules by.
TEST_P(FamilyParityTest, TheDeliveredAdapterHasPeftsNames) {
  const std::string prefix = ReadConfig(dir()).prefix;
  const Adapter adapter = ReadAdapter(dir() / "adapter", prefix);
  spec::JobSpec job = PlainJob(adapter.config);
  job.lora.target_modules = {"all-linear"};
  TrainingModel model(job, dir(), *comm_);
  model.LoadAdapter(adapter);
  const TempDir out;
  const DeliveryResult result = Deliver(
      model, job, {.target = out / "adapter", .model_dir = {}, .model_name = "tiny"}, *comm_);
  EXPECT_TRUE(result.consistency.consistent);
  ASSERT_NO_FATAL_FAILURE(ExpectTensorsOfPeft(out / "adapter", dir() / "adapter"));
  const AdapterConfig config = ReadAdapter(out / "adapter", prefix).config;
  std::vector<std::string> targets = adapter.config.target_modules;
  const bool pattern = targets.front().starts_with(".*");
  if (!prefix.empty() && !pattern)
    targets = {R"(.*language_model\..*\.()" + fmt::format("{}", fmt::join(targets, "|")) + ")"};
  EXPECT_EQ(config.target_modules, targets);
  EXPECT_EQ(TargetParameters(out / "adapter"), TargetParameters(dir() / "adapter"));
  EXPECT_EQ(config.fan_in_fan_out, adapter.config.fan_in_fan_out);
}

// All tensors of the folder that was trained on, of the parts that were not, too.
TEST_P(FamilyParityTest, ADeliveredModelHasTheTensorsOfItsBase) {
  const spec::JobSpec job = PlainJob(spec::Mode::kFullFinetune);
  const TrainingModel model(job, dir(), *comm_);
  const TempDir out;
  const ModelFiles base = ModelFiles::Open(dir()), ours = Delivered(model, job, out / "model");
  std::vector<std::string> names = base.Names(), written = ours.Names();
  for (const std::string& module : model.layout().in_files.unused) {
    std::erase_if(names, [&](const std::string& name) { return name.starts_with(module + "."); });
  }
  std::sort(names.begin(), names.end());
  std::sort(written.begin(), written.end());
  ASSERT_EQ(written, names);
  for (const std::string& name : names) {
    EXPECT_TRUE(at::equal(ours.View(name).to(at::kFloat), base.View(name).to(at::kFloat))) << name;
  }
}

// What files have in fp32 stays so where the rest is delivered in bf16.
class ExactParityTest : public FamilyParityTest {};

TEST_P(ExactParityTest, AModelDeliveredInBf16HasTheTypesOfItsBase) {
  spec::JobSpec job = PlainJob(spec::Mode::kFullFinetune);
  job.parallelism.compute_type = spec::ComputeType::kBf16;
  const TrainingModel model(job, dir(), *comm_);
  const TempDir out;
  const ModelFiles base = ModelFiles::Open(dir()), ours = Delivered(model, job, out / "model");
  int exact = 0;
  for (const std::string& name : ours.Names()) {
    EXPECT_EQ(ours.Info(name).dtype, base.Info(name).dtype) << name;
    EXPECT_TRUE(at::equal(ours.View(name), base.View(name))) << name;
    exact += ours.Info(name).dtype == at::kFloat ? 1 : 0;
  }
  EXPECT_GT(exact, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, ExactParityTest,
                         testing::Values("glm4_moe", "qwen3_5_tied", "qwen3_5_multimodal_tied",
                                         "qwen3_5_moe_multimodal_tied", "qwen3_next"),
                         [](const auto& info) { return info.param; });

class BiasParityTest : public FamilyParityTest {
 protected:
  // A job with the adapter's r, alpha, target modules and choice of biases.
  static spec::JobSpec JobOf(const Adapter& adapter) {
    spec::JobSpec job = PlainJob(adapter.config);
    job.lora.target_modules = adapter.config.target_modules;
    EXPECT_TRUE(spec::ParseEnum(adapter.config.bias, &job.lora.bias));
    return job;
  }
};

TEST_P(BiasParityTest, TrainedBiasesEqualPeft) {
  const Adapter adapter = ReadAdapter(dir() / "bias_adapter");
  TrainingModel model(JobOf(adapter), dir(), *comm_);
  model.LoadAdapter(adapter);
  ExpectPeft(model, Read("bias.safetensors"), Read("rows.safetensors"));
}

TEST_P(BiasParityTest, TheDeliveredAdapterHoldsWhatPeftSaves) {
  const Adapter adapter = ReadAdapter(dir() / "bias_adapter");
  const spec::JobSpec job = JobOf(adapter);
  TrainingModel model(job, dir(), *comm_);
  model.LoadAdapter(adapter);
  const TempDir out;
  const DeliveryResult result = Deliver(
      model, job, {.target = out / "adapter", .model_dir = {}, .model_name = "tiny"}, *comm_);
  EXPECT_TRUE(result.consistency.consistent);
  ASSERT_NO_FATAL_FAILURE(ExpectTensorsOfPeft(out / "adapter", dir() / "bias_adapter"));
  EXPECT_EQ(ReadAdapter(out / "adapter").config.bias, adapter.config.bias);
}

TEST_P(BiasParityTest, GenerationTakesTheAdaptersBiases) {
  const GoldenTensors golden = Read("bias.safetensors");
  Generator generator({.model_dir = dir(), .adapter_dir = dir() / "bias_adapter"});
  const Tensor ids = Read("rows.safetensors").Get("input_ids")[0].to(at::kInt).contiguous();
  const std::vector<int32_t> tokens(ids.const_data_ptr<int32_t>(),
                                    ids.const_data_ptr<int32_t>() + ids.numel());
  EXPECT_LT(RelativeError(generator.Logits(tokens), golden.Get("logits")[0]), kLogitsTolerance);
}

// Adapters of one stack of experts alone, and of both as peft makes them of the names of linears,
// with the double rank on gate and up.
class StackParityTest : public FamilyParityTest {
 protected:
  static constexpr std::string_view kWeight = ".weight";

  std::filesystem::path adapter_dir() const { return dir() / "some_adapter"; }

  spec::JobSpec JobOf(const Adapter& adapter) const {
    spec::JobSpec job = PlainJob(adapter.config);
    job.lora.target_modules = adapter.config.target_modules;
    for (std::string name : TargetParameters(adapter_dir())) {
      if (name.ends_with(kWeight)) name.resize(name.size() - kWeight.size());
      const bool whole = name.find('.') != std::string::npos;
      job.lora.target_modules.push_back(whole ? name : "mlp.experts." + name);
    }
    return job;
  }
};

TEST_P(StackParityTest, LogitsLossAndGradientsEqualPeft) {
  const Adapter adapter = ReadAdapter(adapter_dir());
  TrainingModel model(JobOf(adapter), dir(), *comm_);
  model.LoadAdapter(adapter);
  ExpectPeft(model, Read("some.safetensors"), Read("rows.safetensors"));
}

TEST_P(StackParityTest, TheDeliveredAdapterHoldsWhatPeftSaves) {
  const Adapter adapter = ReadAdapter(adapter_dir());
  const spec::JobSpec job = JobOf(adapter);
  TrainingModel model(job, dir(), *comm_);
  model.LoadAdapter(adapter);
  const TempDir out;
  const DeliveryResult result = Deliver(
      model, job, {.target = out / "adapter", .model_dir = {}, .model_name = "tiny"}, *comm_);
  EXPECT_TRUE(result.consistency.consistent);
  ASSERT_NO_FATAL_FAILURE(ExpectTensorsOfPeft(out / "adapter", adapter_dir()));
  EXPECT_EQ(TargetParameters(out / "adapter").size(), TargetParameters(adapter_dir()).size());
}

TEST_P(StackParityTest, GenerationTakesTheAdapter) {
  const GoldenTensors golden = Read("some.safetensors");
  Generator generator({.model_dir = dir(), .adapter_dir = adapter_dir()});
  const Tensor ids = Read("rows.safetensors").Get("input_ids")[0].to(at::kInt).contiguous();
  const std::vector<int32_t> tokens(ids.const_data_ptr<int32_t>(),
                                    ids.const_data_ptr<int32_t>() + ids.numel());
  EXPECT_LT(RelativeError(generator.Logits(tokens), golden.Get("logits")[0]), kLogitsTolerance);
}

// The program itself, as an operator compares a delivered adapter with peft.
TEST_P(FamilyParityTest, SftRankWritesTheLogitsOfPeft) {
  const TempDir out;
  const std::string file = (out / "logits.safetensors").string();
  const std::string command = std::string(SFT_BINARY_DIR) + "/bin/sft-rank logits --model " +
                              dir().string() + " --adapter " + (dir() / "adapter").string() +
                              " --tokens " + (dir() / "rows.safetensors").string() + " --out " +
                              file;
  ASSERT_EQ(std::system(command.c_str()), 0);
  const GoldenTensors written(file);
  EXPECT_TRUE(at::equal(written.Get("input_ids"), Read("rows.safetensors").Get("input_ids")));
  EXPECT_LT(RelativeError(written.Get("logits"), Read("lora.safetensors").Get("logits")),
            kLogitsTolerance);
}

TEST_P(FamilyParityTest, CachedGenerationEqualsWholeForwards) {
  const GoldenTensors rows = Read("rows.safetensors");
  Generator generator({.model_dir = dir(), .adapter_dir = dir() / "adapter"});
  const Tensor ids = rows.Get("input_ids").select(0, 0).to(at::kInt).contiguous();
  std::vector<int32_t> tokens(ids.const_data_ptr<int32_t>(), ids.const_data_ptr<int32_t>() + 6);
  const std::vector<int32_t> generated = generator.Generate(tokens, 20, {});
  ASSERT_EQ(generated.size(), 20u);
  for (int32_t token : generated) {
    EXPECT_EQ(token, generator.Logits(tokens)[-1].argmax().item<int64_t>());
    tokens.push_back(token);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, FamilyParityTest,
    testing::Values("llama_rope_llama3_tied", "llama_biases_rope_linear_untied",
                    "qwen2_sliding_untied", "qwen2_rope_yarn_tied", "qwen3_tied",
                    "qwen3_sliding_rope_yarn_untied", "mistral_sliding_untied",
                    "mistral_rope_linear_tied", "granite_tied", "granite_biases_untied",
                    "smollm3_tied", "smollm3_sliding_untied", "gemma3_tied", "gemma3_biases_untied",
                    "gemma3_multimodal_tied", "gemma4_tied", "gemma4_biases_untied",
                    "gemma4_e_tied", "gemma4_shared_untied", "gemma4_multimodal_tied",
                    "gemma4_moe_tied", "gemma4_moe_multimodal_tied", "olmo2_untied",
                    "olmo2_biases_tied", "olmo3_untied", "olmo3_tied", "phi3_untied",
                    "phi3_longrope_partial_tied", "gpt2_tied", "gpt2_untied", "ministral_untied",
                    "phi3_odd_part_untied", "ministral3_untied", "mistral3_multimodal_untied",
                    "qwen3_moe", "qwen3_moe_mixed", "glm4_moe", "glm4_moe_groups", "mixtral",
                    "gpt_oss", "gpt_oss_tied", "qwen3_5_tied", "qwen3_5_biases_untied",
                    "qwen3_5_multimodal_tied", "qwen3_5_moe", "qwen3_5_moe_multimodal_tied",
                    "qwen3_next", "qwen3_next_biases_tied"),
    [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(DenseGranite4, FamilyParityTest,
                         testing::Values("granite4_tied", "granite4_nope_untied"),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(DenseGranite4, PackedParityTest, testing::Values("granite4_tied"),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(Families, BiasParityTest,
                         testing::Values("qwen2_sliding_untied", "llama_biases_rope_linear_untied",
                                         "gpt2_tied", "gpt_oss", "qwen3_5_biases_untied"),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(Families, StackParityTest,
                         testing::Values("qwen3_moe", "qwen3_moe_mixed", "glm4_moe",
                                         "glm4_moe_groups", "mixtral", "gpt_oss", "gpt_oss_tied",
                                         "gemma4_moe_tied", "qwen3_5_moe", "qwen3_next",
                                         "qwen3_next_biases_tied"),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(Families, PackedParityTest,
                         testing::Values("llama_rope_llama3_tied", "qwen2_sliding_untied",
                                         "qwen3_tied", "mistral_sliding_untied", "granite_tied",
                                         "smollm3_sliding_untied", "gemma3_tied", "gemma4_tied",
                                         "gemma4_e_tied", "gemma4_moe_tied", "olmo2_untied",
                                         "olmo3_untied", "ministral3_untied",
                                         "phi3_longrope_partial_tied", "gpt2_tied", "qwen3_moe",
                                         "glm4_moe", "mixtral", "gpt_oss", "qwen3_5_tied",
                                         "qwen3_5_moe", "qwen3_next"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace sft::engine
