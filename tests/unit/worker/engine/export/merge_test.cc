#include "worker/engine/export/merge.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/export/logit_difference.h"

namespace sft::engine {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

constexpr char kModule[] = "model.layers.0.self_attn.q_proj";

Tensor Noise(std::vector<int64_t> shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kFloat);
}

class MergeTest : public testing::Test {
 protected:
  void SetUp() override { WriteTinyModel(dir_ / "model", TinyConfig()); }

  LoraPair PutAdapter(bool dora = false, double size = 1.0) const {
    AdapterConfig config;
    config.r = 2;
    config.alpha = 4;
    config.target_modules = {"q_proj"};
    config.use_dora = dora;
    LoraPair pair{kModule, Noise({2, 32}, 1), Noise({32, 2}, 2) * size};
    if (dora) pair.magnitude = Noise({32}, 3).abs() + 1;
    WriteAdapter({.target = dir_ / "adapter"}, config, std::vector<LoraPair>{pair});
    return pair;
  }

  MergeOptions Options(at::ScalarType type = at::kFloat) const {
    return {.model_dir = dir_ / "model",
            .adapter_dir = dir_ / "adapter",
            .target = dir_ / "merged",
            .type = type};
  }

  Tensor Weight(const char* folder, const std::string& name) const {
    return ModelFiles::Open(dir_ / folder).View(name).clone();
  }

  LogitDifference Difference(const QuantFormat* quantized) const {
    const ComparedRows rows{{{3, 17, 42, 8, 1, 2}}, {{0, 1, 1, 1, 1, 1}}};
    const auto trained = LogitsOfRows(
        {.model_dir = dir_ / "model", .adapter_dir = dir_ / "adapter", .quantized = quantized},
        rows);
    return CompareLogits(rows, trained, LogitsOfRows({.model_dir = dir_ / "merged"}, rows));
  }

  TempDir dir_;
};

TEST_F(MergeTest, TheWeightIsTheBasesWithTheAdaptersProduct) {
  const LoraPair pair = PutAdapter();
  const MergeReport report = MergeAdapter(Options());
  EXPECT_EQ(report.modules, 1);
  EXPECT_EQ(report.largest_rounding, 0);
  const std::string name = std::string(kModule) + ".weight";
  const Tensor want = Weight("model", name).to(at::kFloat) + 2.0 * at::matmul(pair.b, pair.a);
  EXPECT_TRUE(at::allclose(Weight("merged", name), want, 1e-6, 1e-6));
  const std::string other = "model.layers.0.self_attn.k_proj.weight";
  EXPECT_TRUE(at::equal(Weight("merged", other), Weight("model", other).to(at::kFloat)));
  EXPECT_LT(Difference(nullptr).largest, 1e-4);
}

// Every expert's factors, of stacks that files hold as [experts, inputs, outputs] (gpt_oss) and as
// a tensor for each expert and linear.
TEST_F(MergeTest, StacksOfExpertsAreMergedExpertByExpert) {
  constexpr int64_t kExperts = 3, kRank = 2, kHidden = 32, kInner = 16;
  for (const char* family : {"gpt_oss", "qwen3_moe"}) {
    SCOPED_TRACE(family);
    WriteTinyModel(dir_ / "model", R"({"model_type": ")" + std::string(family) + R"(",
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 16, "moe_intermediate_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "num_local_experts": 3, "num_experts_per_tok": 2, "max_position_embeddings": 64})");
    AdapterConfig config;
    config.r = kRank;
    config.alpha = 4;
    const std::string experts = "model.layers.1.mlp.experts.";
    config.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
    const std::vector<LoraPair> pairs{{.module = experts + "down_proj",
                                       .a = Noise({kExperts * kRank, kInner}, 1),
                                       .b = Noise({kExperts * kHidden, kRank}, 2),
                                       .experts = kExperts},
                                      {.module = experts + "gate_up_proj",
                                       .a = Noise({kExperts * kRank, kHidden}, 3),
                                       .b = Noise({kExperts * 2 * kInner, kRank}, 4),
                                       .experts = kExperts}};
    WriteAdapter({.target = dir_ / "adapter"}, config, pairs);
    EXPECT_EQ(MergeAdapter(Options()).modules, 2);
    EXPECT_LT(Difference(nullptr).largest, 1e-4);
    // Beside the base alone it is another model.
    std::filesystem::rename(dir_ / "merged", dir_ / "kept");
    const ComparedRows rows{{{3, 17, 42, 8, 1, 2}}, {{0, 1, 1, 1, 1, 1}}};
    const auto base = LogitsOfRows({.model_dir = dir_ / "model"}, rows);
    EXPECT_GT(CompareLogits(rows, base, LogitsOfRows({.model_dir = dir_ / "kept"}, rows)).largest,
              1e-2);
    std::filesystem::remove_all(dir_ / "kept");
  }
}

TEST_F(MergeTest, DoraScalesTheRowsOfTheSum) {
  const LoraPair pair = PutAdapter(/*dora=*/true);
  MergeAdapter(Options());
  const std::string name = std::string(kModule) + ".weight";
  const Tensor sum = Weight("model", name).to(at::kFloat) + 2.0 * at::matmul(pair.b, pair.a);
  const Tensor norms = at::linalg_vector_norm(sum, 2, {1}, /*keepdim=*/true);
  EXPECT_TRUE(
      at::allclose(Weight("merged", name), sum / norms * pair.magnitude.unsqueeze(1), 1e-5, 1e-6));
  EXPECT_LT(Difference(nullptr).largest, 1e-3);
}

TEST_F(MergeTest, TheQuantisedBaseIsWhatAnAdapterOnItWasTrainedBeside) {
  PutAdapter();
  const auto nf4 = MakeNf4Format(/*double_quant=*/true);
  MergeOptions options = Options();
  options.quantized = nf4.get();
  MergeAdapter(options);
  const LogitDifference same = Difference(nf4.get());
  EXPECT_LT(same.largest, 1e-4);
  EXPECT_EQ(same.agreement, 1.0);
  MergeAdapter(Options());
  EXPECT_GT(Difference(nf4.get()).mean, 10 * same.mean);
}

TEST_F(MergeTest, AWeakAdapterIsLostInRoundingAndThatIsSaid) {
  PutAdapter(/*dora=*/false, 1e-5);
  const MergeReport report = MergeAdapter(Options(at::kBFloat16));
  EXPECT_GT(report.mean_rounding, 0.3);
  EXPECT_EQ(report.largest_module, kModule);
}

TEST_F(MergeTest, AnAdapterOfAnotherModelIsRefusedAndLeavesNothing) {
  AdapterConfig config;
  config.r = 2;
  config.alpha = 4;
  config.target_modules = {"q_proj"};
  WriteAdapter({.target = dir_ / "adapter"}, config,
               std::vector<LoraPair>{{kModule, Noise({2, 48}, 1), Noise({32, 2}, 2)}});
  try {
    MergeAdapter(Options());
    FAIL() << "merged";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr(kModule));
  }
  EXPECT_FALSE(std::filesystem::exists(dir_ / "merged"));
}

TEST_F(MergeTest, EachTensorAndRowIsToldOfAndAStopBetweenThemLeavesNothing) {
  struct Stopped {};
  PutAdapter();
  MergeOptions options = Options();
  int told = 0;
  options.on_tensor = [&told] {
    if (++told == 3) throw Stopped();
  };
  EXPECT_THROW(MergeAdapter(options), Stopped);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "merged"));
  MergeAdapter(options);
  EXPECT_GT(told, 6);
  int rows = 0;
  LogitsOfRows({.model_dir = dir_ / "merged"}, {{{3, 17}, {5, 2}}, {{0, 1}, {0, 1}}},
               [&rows] { ++rows; });
  EXPECT_EQ(rows, 2);
}

}  // namespace
}  // namespace sft::engine
