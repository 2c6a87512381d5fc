// LoRA and QLoRA whose products with frozen weights are in FP8, of mixtures of experts and without:
// near the plain one, and the same bits by any plan.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/documents.h"
#include "worker/engine/train/training_model.h"

namespace sft::engine {
namespace {

using at::Tensor;
using plan::Recompute;
using spec::Matmul;

// All experts are chosen, so that rounding cannot choose others.
constexpr const char* kFrozenSizes =
    R"(, "vocab_size": 96, "hidden_size": 64, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "pad_token_id": null})";
struct FrozenFamily {
  const char* name;
  const char* family;
};
constexpr FrozenFamily kFrozenFamilies[] = {
    {"llama", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"])"},
    {"qwen3_moe", R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 32)"},
    {"gpt_oss", R"({"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"],
        "num_local_experts": 4, "num_experts_per_tok": 4, "sliding_window": 8)"},
    {"glm4_moe", R"({"model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"],
        "n_routed_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
        "n_shared_experts": 1, "first_k_dense_replace": 1)"},
    {"gemma4_moe", R"({"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"],
        "enable_moe_block": true, "num_experts": 4, "top_k_experts": 4,
        "moe_intermediate_size": 32, "hidden_size_per_layer_input": 0, "global_head_dim": 32,
        "sliding_window": 8)"},
};

struct FrozenStep {
  double loss = 0;
  std::vector<std::string> names;
  std::vector<Tensor> gradients;
};

class FrozenFp8TrainingTest : public testing::TestWithParam<std::tuple<FrozenFamily, bool>> {
 protected:
  void SetUp() override {
    WriteTinyModel(dir_.path(), std::string(std::get<0>(GetParam()).family) + kFrozenSizes);
  }
  bool qlora() const { return std::get<1>(GetParam()); }

  // Second factors begin at zero, which would hide the gradients of the first: they are given.
  FrozenStep Train(Matmul matmul, int64_t rank, const plan::ExecutionPlan& run = {},
                   spec::JobSpec job = {}) const {
    const at::NoGradGuard no_grad;
    job.training.mode = spec::Mode::kLora;
    job.training.matmul = matmul;
    job.training.use_qlora = qlora();
    job.quantization.bits = qlora() ? 4 : 0;
    job.lora.r = rank;
    job.lora.target_modules = {"all-linear"};
    const auto comm = MakeLocalCommunicator(at::kCPU);
    TrainingModel model(job, dir_.path(), *comm, run);
    model.SetTrained([](const ParamInfo& param) {
      const int64_t count = param.numel();
      Tensor wave = at::arange(count, at::kFloat).mul_(0.7548777F).add_(0.1F * count);
      wave = wave.sub(wave.floor()).sub_(0.5F).mul_(0.2F);
      return wave.view(param.shape);
    });
    const MicroBatch batch = Documents({17, 5, 11}, 3, kTinyVocabulary);
    const double scale = 1.0 / static_cast<double>(batch.loss_rows.size());
    FrozenStep step;
    model.BeginStep();
    step.loss = model.ForwardBackward(batch, 0, 0, /*last=*/true).item<double>() * scale;
    model.ReduceGradients(scale);
    for (const TrainablePart& part : model.store().parts()) {
      step.names.push_back(model.layout().units[part.unit].params[part.param].name);
    }
    for (const Tensor& gradient : model.gradients()) step.gradients.push_back(gradient.clone());
    return step;
  }

  static double Error(const Tensor& actual, const Tensor& expected) {
    return ((actual - expected).norm() / expected.norm()).item<double>();
  }

  TempDir dir_;
};

TEST_P(FrozenFp8TrainingTest, LossAndGradientsAreNearThoseOfPlainProducts) {
  for (const int64_t rank : {16, 4}) {
    const FrozenStep plain = Train(Matmul::kBf16, rank), fp8 = Train(Matmul::kFp8, rank);
    EXPECT_NEAR(fp8.loss, plain.loss, 0.01 * plain.loss);
    EXPECT_NE(fp8.loss, plain.loss);
    ASSERT_EQ(fp8.names, plain.names);
    std::vector<Tensor> all, all_plain;
    for (size_t i = 0; i < plain.gradients.size(); ++i) {
      // Differences of scores magnify what conversion changes in queries and keys.
      const double error = Error(fp8.gradients[i], plain.gradients[i]);
      EXPECT_LT(error, 0.6) << fp8.names[i];
      EXPECT_GT(error, 1e-4) << fp8.names[i];
      all.push_back(fp8.gradients[i].flatten());
      all_plain.push_back(plain.gradients[i].flatten());
    }
    const double error = Error(at::cat(all), at::cat(all_plain));
    printf(
        "[ frozen fp8 ] rank %d: loss %.5f, in bf16 %.5f; relative error of all gradients %.3f\n",
        static_cast<int>(rank), fp8.loss, plain.loss, error);
    EXPECT_LT(error, 0.3);
  }
}

TEST_P(FrozenFp8TrainingTest, EveryPlanHasTheSameBits) {
  const FrozenStep expected = Train(Matmul::kFp8, 16);
  for (const Recompute level :
       {Recompute::kNorms, Recompute::kMlp, Recompute::kLinears, Recompute::kAll}) {
    for (const int64_t kept : {0, 1, 2}) {
      const FrozenStep actual = Train(Matmul::kFp8, 16, {.shallow = level, .kept = kept});
      EXPECT_EQ(actual.loss, expected.loss) << static_cast<int>(level) << " " << kept;
      for (size_t i = 0; i < expected.gradients.size(); ++i) {
        EXPECT_TRUE(at::equal(actual.gradients[i], expected.gradients[i])) << expected.names[i];
      }
    }
  }
}

// Whose weights pass through slots, with the adapters beside them.
TEST_P(FrozenFp8TrainingTest, UnderFullShardAreTheBitsOfWholeWeights) {
  spec::JobSpec sharded, whole;
  sharded.parallelism.sharding = spec::Sharding::kFullShard;
  for (const spec::ComputeType compute : {spec::ComputeType::kFp32, spec::ComputeType::kBf16}) {
    whole.parallelism.compute_type = sharded.parallelism.compute_type = compute;
    const FrozenStep expected = Train(Matmul::kBf16, 16, {}, whole);
    for (const int64_t kept : {0, 2}) {
      const FrozenStep actual = Train(Matmul::kBf16, 16, {.kept = kept}, sharded);
      EXPECT_EQ(actual.loss, expected.loss) << kept;
      for (size_t i = 0; i < expected.gradients.size(); ++i) {
        EXPECT_TRUE(at::equal(actual.gradients[i].flatten(), expected.gradients[i].flatten()))
            << expected.names[i];
      }
    }
  }
}

TEST_P(FrozenFp8TrainingTest, TilesOfTheFeedForwardLayerAreNearTheWhole) {
  const FrozenStep expected = Train(Matmul::kFp8, 16, {.shallow = Recompute::kMlp});
  const FrozenStep tiled = Train(Matmul::kFp8, 16, {.shallow = Recompute::kMlp, .mlp_rows = 10});
  EXPECT_NEAR(tiled.loss, expected.loss, 1e-5 * expected.loss);
  for (size_t i = 0; i < expected.names.size(); ++i) {
    EXPECT_LT(Error(tiled.gradients[i], expected.gradients[i]), 1e-3) << expected.names[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FrozenFp8TrainingTest,
                         testing::Combine(testing::ValuesIn(kFrozenFamilies), testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) ? "_qlora" : "_lora");
                         });

}  // namespace
}  // namespace sft::engine
