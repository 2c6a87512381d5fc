#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/documents.h"
#include "worker/engine/train/training_model.h"

// What lets long rows fit: what blocks keep in host memory, and feed-forward layers in tiles.

namespace sft::engine {
namespace {

using at::Tensor;
using plan::Recompute;

struct Case {
  const char* name;
  std::string config;
  spec::JobSpec job;

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

spec::JobSpec Job(spec::Mode mode, double dropout = 0) {
  spec::JobSpec job;
  job.training.mode = mode;
  job.lora.target_modules = {"all-linear"};
  job.lora.dropout = dropout;
  return job;
}

// Norms around both sub-layers, windows, and a layer that sees all.
constexpr char kGemma[] = R"({"model_type": "gemma3_text", "vocab_size": 96, "hidden_size": 32,
  "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4,
  "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
  "rope_theta": 10000.0, "rope_local_base_freq": 1000.0, "rms_norm_eps": 1e-6,
  "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 64})";
constexpr char kGpt2[] = R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4,
  "n_positions": 64, "vocab_size": 96, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0})";

// A dense layer among those with experts, whose weights are shares of all experts'.
constexpr char kQwen3Moe[] = R"({"model_type": "qwen3_moe", "vocab_size": 96, "hidden_size": 32,
  "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 3,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 5,
  "num_experts_per_tok": 2, "norm_topk_prob": false, "mlp_only_layers": [1],
  "max_position_embeddings": 64})";
// Sinks, biases of experts and router, stacks that stand in the files as [inputs, outputs].
constexpr char kGptOss[] = R"({"model_type": "gpt_oss", "vocab_size": 96, "hidden_size": 32,
  "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
  "sliding_window": 4, "max_position_embeddings": 64})";

// An expert of all tokens beside those of groups, and heads that are normed and rotated in part.
constexpr char kGlm4Moe[] = R"({"model_type": "glm4_moe", "vocab_size": 96, "hidden_size": 32,
  "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 3,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "use_qk_norm": true,
  "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 3, "topk_group": 2,
  "first_k_dense_replace": 1, "routed_scaling_factor": 1.7, "max_position_embeddings": 64})";

// Two gated DeltaNets around attention with an output gate, heads rotated in part.
constexpr char kQwen35[] = R"({"model_type": "qwen3_5_text", "vocab_size": 96, "hidden_size": 32,
  "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "full_attention_interval": 2,
  "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
  "linear_value_head_dim": 8, "max_position_embeddings": 64})";

// Experts as a branch beside a feed-forward layer, each with norms around it.
constexpr char kGemma4Moe[] = R"({"model_type": "gemma4_text", "vocab_size": 96,
  "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16, "attention_k_eq_v": true,
  "num_global_key_value_heads": 1, "sliding_window": 4, "hidden_size_per_layer_input": 0,
  "layer_types": ["sliding_attention", "full_attention", "full_attention"],
  "enable_moe_block": true, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 16,
  "final_logit_softcapping": 3.0, "max_position_embeddings": 64})";

class LongRowsTest : public ::testing::TestWithParam<Case> {
 protected:
  struct Result {
    double loss = 0;
    std::vector<Tensor> gradients;
    int64_t host_bytes = 0;
  };

  LongRowsTest() { WriteTinyModel(dir_.path(), GetParam().config); }

  // Of two micro-batches, the second one longer.
  Result Run(const plan::ExecutionPlan& run) {
    const at::NoGradGuard no_grad;
    TrainingModel model(GetParam().job, dir_.path(), *comm_, run);
    // B is zero at first, and would hide A's gradient.
    for (const TrainablePart& part : model.store().parts()) part.master.add_(0.02);
    model.MastersChanged();
    model.BeginStep();
    Result result;
    for (int micro = 0; micro < 2; ++micro) {
      const MicroBatch batch = Documents({7, 9 + 6 * micro, 3}, micro + 1, kTinyVocabulary);
      result.loss += model.ForwardBackward(batch, 0, micro, /*last=*/micro == 1).item<double>();
    }
    model.ReduceGradients(1.0);
    for (const Tensor& gradient : model.gradients()) result.gradients.push_back(gradient.clone());
    if (model.decoder().on_host() != nullptr)
      result.host_bytes = model.decoder().on_host()->Bytes();
    return result;
  }

  static plan::ExecutionPlan RunOf(Recompute level, int64_t on_host, int64_t mlp_rows) {
    plan::ExecutionPlan run;
    run.deep = run.shallow = level;
    run.deep_layers = 3;
    run.kept_on_host = on_host;
    run.mlp_rows = mlp_rows;
    return run;
  }

  TempDir dir_;
  std::unique_ptr<Communicator> comm_ = MakeLocalCommunicator(at::kCPU);
};

TEST_P(LongRowsTest, HostMemoryGivesBackTheSameBits) {
  const Result plain = Run(RunOf(Recompute::kNothing, 0, 0));
  EXPECT_EQ(plain.host_bytes, 0);
  for (const Recompute level :
       {Recompute::kNorms, Recompute::kMlp, Recompute::kLinears, Recompute::kAll}) {
    for (const int64_t on_host : {0, 1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << plan::NameOf(level) << ", " << on_host << " on the host");
      const Result other = Run(RunOf(level, on_host, 0));
      EXPECT_EQ(other.host_bytes > 0, on_host > 0);
      EXPECT_EQ(other.loss, plain.loss);
      ASSERT_EQ(other.gradients.size(), plain.gradients.size());
      for (size_t i = 0; i < plain.gradients.size(); ++i) {
        EXPECT_TRUE(at::equal(other.gradients[i], plain.gradients[i])) << i;
      }
    }
  }
}

TEST_P(LongRowsTest, TilesOfTheFeedForwardLayerGiveTheSameSumsInAnotherOrder) {
  if (GetParam().job.lora.dropout > 0) GTEST_SKIP() << "masks are drawn by tile";
  const Result plain = Run(RunOf(Recompute::kNothing, 0, 0));
  for (const Recompute level : {Recompute::kMlp, Recompute::kLinears, Recompute::kAll}) {
    for (const int64_t rows : {5, 8, 64}) {
      SCOPED_TRACE(testing::Message() << plan::NameOf(level) << " in tiles of " << rows);
      const Result tiled = Run(RunOf(level, 2, rows));
      EXPECT_NEAR(tiled.loss, plain.loss, 1e-5 * plain.loss);
      for (size_t i = 0; i < plain.gradients.size(); ++i) {
        const Tensor difference = (tiled.gradients[i] - plain.gradients[i]).norm();
        const Tensor norm = plain.gradients[i].norm();
        // Keys' biases have no gradient, but for rounding.
        EXPECT_LE(difference.item<double>(), 1e-5 * norm.item<double>() + 1e-6) << i;
      }
    }
  }
}

// Blocks between run forward once more, with the same masks.
TEST_P(LongRowsTest, InputsThatAreMadeAgainGiveTheSameBits) {
  const Result plain = Run(RunOf(Recompute::kNothing, 0, 0));
  for (const int64_t every : {2, 3, 8}) {
    for (const int64_t on_host : {0, 1, 3}) {
      SCOPED_TRACE(testing::Message() << every << ", " << on_host << " on the host");
      plan::ExecutionPlan run = RunOf(Recompute::kAll, on_host, 0);
      run.input_every = every;
      const Result other = Run(run);
      EXPECT_EQ(other.loss, plain.loss);
      for (size_t i = 0; i < plain.gradients.size(); ++i) {
        EXPECT_TRUE(at::equal(other.gradients[i], plain.gradients[i])) << i;
      }
    }
  }
}

// Each tile has masks of its own, which the backward draws again.
TEST_P(LongRowsTest, ARecomputedTileHasTheMasksOfItsForward) {
  const Result mlp = Run(RunOf(Recompute::kMlp, 0, 5));
  for (const Recompute level : {Recompute::kLinears, Recompute::kAll}) {
    const Result other = Run(RunOf(level, 2, 5));
    EXPECT_EQ(other.loss, mlp.loss);
    for (size_t i = 0; i < mlp.gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(other.gradients[i], mlp.gradients[i])) << plan::NameOf(level) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, LongRowsTest,
    ::testing::Values(Case{"LlamaAdapters", TinyConfig(""), Job(spec::Mode::kLora)},
                      Case{"LlamaDropout", TinyConfig(""), Job(spec::Mode::kLora, 0.2)},
                      Case{"LlamaWhole", TinyConfig(""), Job(spec::Mode::kFullFinetune)},
                      Case{"GemmaAdapters", kGemma, Job(spec::Mode::kLora)},
                      Case{"GemmaWhole", kGemma, Job(spec::Mode::kFullFinetune)},
                      Case{"Gpt2Adapters", kGpt2, Job(spec::Mode::kLora)},
                      Case{"Gpt2Whole", kGpt2, Job(spec::Mode::kFullFinetune)},
                      Case{"ExpertsAdapters", kQwen3Moe, Job(spec::Mode::kLora)},
                      Case{"ExpertsWhole", kQwen3Moe, Job(spec::Mode::kFullFinetune)},
                      Case{"Glm4MoeAdapters", kGlm4Moe, Job(spec::Mode::kLora)},
                      Case{"Glm4MoeWhole", kGlm4Moe, Job(spec::Mode::kFullFinetune)},
                      Case{"Gemma4MoeAdapters", kGemma4Moe, Job(spec::Mode::kLora)},
                      Case{"Gemma4MoeWhole", kGemma4Moe, Job(spec::Mode::kFullFinetune)},
                      Case{"HybridAdapters", kQwen35, Job(spec::Mode::kLora)},
                      Case{"HybridDropout", kQwen35, Job(spec::Mode::kLora, 0.2)},
                      Case{"HybridWhole", kQwen35, Job(spec::Mode::kFullFinetune)},
                      Case{"GptOssAdapters", kGptOss, Job(spec::Mode::kLora)},
                      Case{"GptOssWhole", kGptOss, Job(spec::Mode::kFullFinetune)}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::engine
