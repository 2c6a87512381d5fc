#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "tests/gpu/gpu_test.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/train/training_model.h"

// Small models of each family on a GPU, in fp32 and in bf16, beside the same on the CPU in fp32,
// which tests/parity holds against transformers: loss, and the gradient of every trained parameter.

namespace sft::engine {
namespace {

using at::Tensor;

struct FamilyCase {
  const char* name;
  const char* family;    // keys of config.json that set it apart, model_type first
  bool experts = false;  // which have no DoRA
  // Rounding changes its gradients by more than kRounded: what bf16 on the CPU changes is the
  // bound.
  bool magnifies = false;

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

// The last one is sharded: its weights are gathered into slots, with room for the adapters.
enum class Method { kFull, kLora, kQlora, kDora, kLoraInSlots };

void PrintTo(Method method, std::ostream* out) {
  constexpr const char* kNames[] = {"full", "lora", "qlora", "dora", "lora_in_slots"};
  *out << kNames[static_cast<int>(method)];
}

// Uniform within the bound that keeps an output's size, from the number of its factor.
Tensor Factor(const std::vector<int64_t>& shape, int number) {
  const int64_t count = shape[0] * shape[1];
  Tensor values = at::arange(count, at::kDouble).mul_(0.7548776662).add_(number * 0.56984);
  values = values.sub(values.floor()).mul_(2.0).sub_(1.0);
  values.div_(std::sqrt(static_cast<double>(shape[1])));
  return values.to(at::kFloat).reshape(shape);
}

Adapter GivenAdapter(const ModelLayout& layout) {
  Adapter adapter;
  int number = 0;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& a : unit.params) {
      if (a.role != ParamRole::kLoraA) continue;
      const std::string module(a.module());
      const ParamInfo& b = unit.params[unit.Find(module + ".lora_B.weight")];
      adapter.pairs.push_back({.module = module,
                               .a = Factor(a.shape, number),
                               .b = Factor(b.shape, number + 1),
                               .experts = a.experts});
      if (unit.Find(module + ".lora_magnitude_vector") >= 0) {
        const Tensor wave = Factor({b.shape[0], 1}, number + 2).flatten();
        adapter.pairs.back().magnitude = wave.mul_(0.3F).add_(1.0F);
      }
      number += 2;
    }
  }
  return adapter;
}

class FamilyOnGpuTest : public GpuTest,
                        public testing::WithParamInterface<std::tuple<FamilyCase, Method>> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    dir_ = OwnFolder(std::string("sft_family_") + std::get<0>(GetParam()).name);
    WriteTinyModel(dir_, ConfigOf(std::get<0>(GetParam())));
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // One micro-batch. A fresh adapter's second factors are zero, which would hide the gradients of
  // the first: both are given. DoRA is over 4-bit weights.
  Gradients Run(at::Device device, spec::ComputeType compute,
                spec::Matmul matmul = spec::Matmul::kBf16) const {
    const Method method = std::get<1>(GetParam());
    spec::JobSpec job;
    job.training.mode = method == Method::kFull ? spec::Mode::kFullFinetune : spec::Mode::kLora;
    job.training.use_qlora = method == Method::kQlora || method == Method::kDora;
    job.training.matmul = matmul;
    job.lora.use_dora = method == Method::kDora;
    job.parallelism.compute_type = compute;
    if (method == Method::kLoraInSlots) job.parallelism.sharding = spec::Sharding::kFullShard;
    job.lora.r = 16;
    job.lora.target_modules = {"all-linear"};
    const at::NoGradGuard no_grad;
    const auto comm = MakeLocalCommunicator(device);
    TrainingModel model(job, dir_, *comm);
    if (method != Method::kFull) model.LoadAdapter(GivenAdapter(model.layout()));
    const MicroBatch batch = Documents();
    const double count = static_cast<double>(batch.loss_tokens());
    model.BeginStep();
    Gradients result;
    result.loss = model.ForwardBackward(batch, 0, 0, /*last=*/true).item<double>() / count;
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

// The largest relative difference of a parameter's gradient.
double LargestError(const Gradients& actual, const Gradients& expected) {
  EXPECT_EQ(actual.names, expected.names);
  double largest = 0;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const Tensor difference = actual.values[i].reshape({-1}) - expected.values[i].reshape({-1});
    largest = std::max(largest, Norm(difference) / (Norm(expected.values[i]) + 1e-30));
  }
  return largest;
}

// The largest error of a gradient in bf16. In fp32 the arithmetic is compared. In bf16, which keeps
// 8 bits, a model of random weights magnifies each rounding: what is seen is that its own kernels
// are called rightly.
constexpr double kRounded = 0.4;

TEST_P(FamilyOnGpuTest, LossAndGradientsAreThoseOfTheCpu) {
  const FamilyCase& family = std::get<0>(GetParam());
  if (family.experts && std::get<1>(GetParam()) == Method::kDora) {
    GTEST_SKIP() << "stacks of experts have no DoRA";
  }
  const at::Device gpu(at::kCUDA, 0);
  const Gradients cpu = Run(at::kCPU, spec::ComputeType::kFp32);
  const Gradients fp32 = Run(gpu, spec::ComputeType::kFp32);
  const Gradients bf16 = Run(gpu, spec::ComputeType::kBf16);
  EXPECT_NEAR(fp32.loss, cpu.loss, 1e-4 * cpu.loss);
  EXPECT_NEAR(bf16.loss, cpu.loss, 0.01 * cpu.loss);
  const double exact = LargestError(fp32, cpu), rounded = LargestError(bf16, cpu);
  printf("[ families ] largest relative error of a gradient: fp32 %.2e, bf16 %.2e\n", exact,
         rounded);
  EXPECT_LT(exact, 2e-3);
  const double bound = family.magnifies
                           ? 2.0 * LargestError(Run(at::kCPU, spec::ComputeType::kBf16), cpu)
                           : kRounded;
  EXPECT_LT(rounded, bound);
}

// e4m3 keeps 4 bits, a sixteenth of what bf16 does, whose losses here are within 1 % of fp32's.
constexpr double kFp8Loss = 0.03;

// Frozen weights in FP8: the GPU's beside the CPU's, whose scales are of rows in fp32, and
// the loss near that of bf16.
TEST_P(FamilyOnGpuTest, ProductsInFp8AreThoseOfTheCpu) {
  const FamilyCase& family = std::get<0>(GetParam());
  const Method method = std::get<1>(GetParam());
  if ((method != Method::kLora && method != Method::kQlora) || !family.experts) {
    GTEST_SKIP() << "for adapters of mixtures of experts";
  }
  if (std::string_view(family.family).find("shared_expert_intermediate_size") !=
      std::string_view::npos) {
    GTEST_SKIP() << "a gate of one output has no products in FP8";
  }
  const CudaDeviceProperties device = Plugin().devices->Properties(0);
  if (device.compute_major != 9) GTEST_SKIP() << device.name << " is no Hopper";
  const at::Device gpu(at::kCUDA, 0);
  const Gradients cpu = Run(at::kCPU, spec::ComputeType::kFp32, spec::Matmul::kFp8);
  const Gradients plain = Run(gpu, spec::ComputeType::kBf16);
  const Gradients fp8 = Run(gpu, spec::ComputeType::kBf16, spec::Matmul::kFp8);
  EXPECT_NEAR(fp8.loss, cpu.loss, kFp8Loss * cpu.loss);
  EXPECT_NEAR(fp8.loss, plain.loss, kFp8Loss * plain.loss);
  const double error = LargestError(fp8, cpu), of_fp8 = LargestError(fp8, plain);
  printf(
      "[ families ] loss bf16 %.5f, FP8 %.5f; largest relative error of a gradient in FP8: to the "
      "CPU's %.2e, to bf16 %.2e\n",
      plain.loss, fp8.loss, error, of_fp8);
  // Conversion changes what rounding to bf16 does some more: both are seen.
  const double bound =
      2.0 *
      std::max(kRounded,
               LargestError(Run(at::kCPU, spec::ComputeType::kBf16, spec::Matmul::kFp8), cpu));
  EXPECT_LT(error, bound);
}

constexpr FamilyCase kFamilies[] = {
    {"llama", R"("model_type": "llama", "architectures": ["LlamaForCausalLM"])"},
    {"llama_biases", R"("model_type": "llama", "architectures": ["LlamaForCausalLM"],
        "attention_bias": true, "mlp_bias": true)"},
    {"qwen2", R"("model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"])"},
    {"qwen3", R"("model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 64)"},
    {"granite", R"("model_type": "granite", "architectures": ["GraniteForCausalLM"],
        "embedding_multiplier": 12.0, "attention_multiplier": 0.015625,
        "residual_multiplier": 0.22, "logits_scaling": 8.0, "tie_word_embeddings": true)"},
    {"granite4", R"("model_type": "granitemoehybrid", "architectures":
        ["GraniteMoeHybridForCausalLM"], "shared_intermediate_size": 1024, "num_local_experts": 0,
        "layer_types": ["attention", "attention", "attention", "attention"],
        "position_embedding_type": "rope", "embedding_multiplier": 12.0,
        "attention_multiplier": 0.015625, "residual_multiplier": 0.22, "logits_scaling": 8.0)"},
    {"smollm3", R"("model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"],
        "no_rope_layer_interval": 2)"},
    {"gemma3", R"("model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"],
        "head_dim": 256, "query_pre_attn_scalar": 168, "sliding_window": 48,
        "sliding_window_pattern": 2)"},
    {"gemma4", R"("model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"],
        "hidden_size_per_layer_input": 0, "attention_k_eq_v": true,
        "num_global_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512,
        "sliding_window": 48, "final_logit_softcapping": 3.0, "layer_types": ["sliding_attention",
        "full_attention", "sliding_attention", "full_attention"])"},
    {"gemma4_e", R"("model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"],
        "hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": 4096,
        "num_kv_shared_layers": 2, "use_double_wide_mlp": true, "head_dim": 256,
        "global_head_dim": 512, "sliding_window": 48, "final_logit_softcapping": 3.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
        "full_attention"])"},
    {"gemma4_moe", R"("model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"],
        "enable_moe_block": true, "num_experts": 4, "top_k_experts": 4,
        "moe_intermediate_size": 256, "hidden_size_per_layer_input": 0, "attention_k_eq_v": true,
        "num_global_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512,
        "sliding_window": 48, "final_logit_softcapping": 3.0, "layer_types": ["sliding_attention",
        "full_attention", "sliding_attention", "full_attention"])",
     true},
    {"olmo2", R"("model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"])"},
    {"olmo3", R"("model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"],
        "sliding_window": 48)"},
    {"phi3", R"("model_type": "phi3", "architectures": ["Phi3ForCausalLM"],
        "partial_rotary_factor": 0.75, "original_max_position_embeddings": 128,
        "rope_scaling": {"type": "longrope",
        "short_factor": [1, 1, 1, 1, 1, 1, 1, 1, 1.1, 1.1, 1.1, 1.1, 1.2, 1.2, 1.2, 1.2, 1.3, 1.3,
                         1.3, 1.3, 1.4, 1.4, 1.4, 1.4],
        "long_factor": [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5]})"},
    {"gpt2", R"("model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 512,
        "n_layer": 4, "n_head": 8, "n_positions": 256, "n_inner": 1024, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0)"},
    {"ministral3", R"("model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"],
        "head_dim": 128, "rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn",
        "factor": 16.0, "original_max_position_embeddings": 32, "mscale": 1.0,
        "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1})"},
    {"qwen3_5", R"("model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"],
        "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention",
        "full_attention"], "rope_parameters": {"rope_theta": 1e6, "rope_type": "default",
        "partial_rotary_factor": 0.25})",
     false, true},
    // All experts chosen: rounding cannot choose others.
    {"qwen3_moe", R"("model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
        "head_dim": 64, "num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 256,
        "mlp_only_layers": [1])",
     true},
    {"gpt_oss", R"("model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"],
        "head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 4, "sliding_window": 48)",
     true, true},
    {"glm4_moe", R"("model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"],
        "head_dim": 64, "attention_bias": true, "use_qk_norm": true, "n_routed_experts": 4,
        "num_experts_per_tok": 4, "moe_intermediate_size": 256, "first_k_dense_replace": 1)",
     true},
    {"qwen3_5_moe", R"("model_type": "qwen3_5_moe_text",
        "architectures": ["Qwen3_5MoeForCausalLM"], "head_dim": 64, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
        "layer_types": ["linear_attention", "full_attention", "linear_attention",
        "full_attention"], "num_experts": 4, "num_experts_per_tok": 4,
        "moe_intermediate_size": 256, "shared_expert_intermediate_size": 384)",
     true, true},
    {"qwen3_next", R"("model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"],
        "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 64, "linear_value_head_dim": 64, "layer_types":
        ["linear_attention", "full_attention", "linear_attention", "full_attention"],
        "num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256, "mlp_only_layers": [1])",
     true, true},
    // Some: in bf16 some tokens go elsewhere.
    {"mixtral", R"("model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8, "num_experts_per_tok": 2)",
     true, true},
};

std::string NameOf(const testing::TestParamInfo<std::tuple<FamilyCase, Method>>& info) {
  constexpr const char* kMethods[] = {"full", "lora", "qlora", "dora", "lora_in_slots"};
  return std::string(std::get<0>(info.param).name) + "_" +
         kMethods[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyOnGpuTest,
                         testing::Combine(testing::ValuesIn(kFamilies),
                                          testing::Values(Method::kFull, Method::kLora,
                                                          Method::kQlora, Method::kDora,
                                                          Method::kLoraInSlots)),
                         NameOf);

}  // namespace
}  // namespace sft::engine
