#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "tests/gpu/gpu_test.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/train/training_model.h"

// Small models of each family on a GPU in bf16 beside the same on the CPU in fp32, which
// tests/parity holds against transformers: loss, and the gradient of every trained parameter.

namespace sft::engine {
namespace {

using at::Tensor;

struct FamilyCase {
  const char* name;
  const char* family;  // keys of config.json that set it apart, model_type first

  friend void PrintTo(const FamilyCase& c, std::ostream* out) { *out << c.name; }
};

std::string ConfigOf(const FamilyCase& c) {
  return "{" + std::string(c.family) + R"(, "vocab_size": 512, "hidden_size": 512,
      "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
      "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
      "hidden_act": "silu", "torch_dtype": "bfloat16", "pad_token_id": null})";
}

// Documents of 100, 17 and 139 tokens.
MicroBatch Documents() {
  MicroBatch batch;
  batch.cu_seqlens = {0};
  int32_t begin = 0;
  for (const int32_t length : {100, 17, 139}) {
    for (int32_t i = 0; i < length; ++i) {
      batch.tokens.push_back((begin * 13 + i * i * 7) % 512);
      batch.targets.push_back((begin * 13 + (i + 1) * (i + 1) * 7) % 512);
      batch.positions.push_back(i);
      if (i + 1 < length) batch.loss_rows.push_back(begin + i);
    }
    begin += length;
    batch.cu_seqlens.push_back(begin);
    batch.max_seqlen = std::max(batch.max_seqlen, length);
  }
  return batch;
}

struct Gradients {
  double loss = 0;
  std::vector<std::string> names;
  std::vector<Tensor> values;  // fp32 on the CPU
};

enum class Method { kFull, kLora, kQlora };

class FamilyOnGpuTest : public GpuTest,
                        public testing::WithParamInterface<std::tuple<FamilyCase, Method>> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    dir_ = std::filesystem::path(testing::TempDir()) /
           (std::string("sft_family_") + std::get<0>(GetParam()).name);
    WriteTinyModel(dir_, ConfigOf(std::get<0>(GetParam())));
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // One micro-batch. A fresh adapter's second factors are zero, which would hide the gradients of
  // the first: every trained parameter is moved by the same values.
  Gradients Run(at::Device device) const {
    const Method method = std::get<1>(GetParam());
    spec::JobSpec job;
    job.training.mode = method == Method::kFull ? spec::Mode::kFullFinetune : spec::Mode::kLora;
    job.training.use_qlora = method == Method::kQlora;
    job.parallelism.compute_type =
        device.is_cpu() ? spec::ComputeType::kFp32 : spec::ComputeType::kBf16;
    job.lora.r = 16;
    job.lora.target_modules = {"all-linear"};
    const at::NoGradGuard no_grad;
    const auto comm = MakeLocalCommunicator(device);
    TrainingModel model(job, dir_, *comm);
    const MicroBatch batch = Documents();
    const double count = static_cast<double>(batch.loss_tokens());
    model.BeginStep();
    model.ForwardBackward(batch, 0, 0, /*last=*/true);
    model.ReduceGradients(1.0 / count);
    model.Update(1e-3, 1.0 / count);
    model.BeginStep();
    Gradients result;
    result.loss = model.ForwardBackward(batch, 1, 0, /*last=*/true).item<double>() / count;
    model.ReduceGradients(1.0 / count);
    const auto& parts = model.store().parts();
    for (size_t i = 0; i < parts.size(); ++i) {
      result.names.push_back(model.layout().units[parts[i].unit].params[parts[i].param].name);
      result.values.push_back(model.gradients()[i].to(at::kCPU, at::kFloat));
    }
    return result;
  }

  std::filesystem::path dir_;
};

double Norm(const Tensor& tensor) { return at::linalg_vector_norm(tensor).item<double>(); }

// bf16 keeps 8 bits: sums over 512 elements and four layers differ by a few parts in a hundred.
TEST_P(FamilyOnGpuTest, LossAndGradientsAreThoseOfTheCpu) {
  const Gradients cpu = Run(at::kCPU), gpu = Run(at::Device(at::kCUDA, 0));
  EXPECT_NEAR(gpu.loss, cpu.loss, 0.01 * cpu.loss);
  ASSERT_EQ(gpu.names, cpu.names);
  double worst = 0;
  for (size_t i = 0; i < cpu.values.size(); ++i) {
    ASSERT_EQ(gpu.values[i].numel(), cpu.values[i].numel()) << cpu.names[i];
    const double error = Norm(gpu.values[i].reshape({-1}) - cpu.values[i].reshape({-1})) /
                         (Norm(cpu.values[i]) + 1e-30);
    EXPECT_LT(error, 0.1) << cpu.names[i];
    worst = std::max(worst, error);
  }
  RecordProperty("worst", std::to_string(worst));
  printf("[ families ] largest relative error of a gradient: %.4f\n", worst);
}

constexpr FamilyCase kFamilies[] = {
    {"llama", R"("model_type": "llama", "architectures": ["LlamaForCausalLM"])"},
    {"qwen3", R"("model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 64)"},
    {"granite", R"("model_type": "granite", "architectures": ["GraniteForCausalLM"],
        "embedding_multiplier": 12.0, "attention_multiplier": 0.015625,
        "residual_multiplier": 0.22, "logits_scaling": 8.0, "tie_word_embeddings": true)"},
    {"smollm3", R"("model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"],
        "no_rope_layer_interval": 2)"},
};

std::string NameOf(const testing::TestParamInfo<std::tuple<FamilyCase, Method>>& info) {
  constexpr const char* kMethods[] = {"full", "lora", "qlora"};
  return std::string(std::get<0>(info.param).name) + "_" +
         kMethods[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(
    Families, FamilyOnGpuTest,
    testing::Combine(testing::ValuesIn(kFamilies),
                     testing::Values(Method::kFull, Method::kLora, Method::kQlora)),
    NameOf);

}  // namespace
}  // namespace sft::engine
