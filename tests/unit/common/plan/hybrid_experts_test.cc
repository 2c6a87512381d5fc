#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/checkpoint_names.h"
#include "common/plan/tensors.h"
#include "tests/unit/common/plan/experts.h"
#include "tests/unit/common/plan/jobs.h"

// Models with gated DeltaNets and mixtures of experts: what config.json means, names, parameters.

namespace sft::plan {
namespace {

using ::testing::HasSubstr;

using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

constexpr char kQwen35Moe[] = R"({"model_type": "qwen3_5_moe_text"})";
constexpr char kQwen3Next[] = R"({"model_type": "qwen3_next"})";

// A model of four layers, the last of attention, with 4 experts.
std::string TinyHybrid(const std::string& type, const std::string& more = "") {
  return R"({"model_type": ")" + type +
         R"(", "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
             "shared_expert_intermediate_size": 48, "num_attention_heads": 4, "head_dim": 16,
             "num_key_value_heads": 2, "num_hidden_layers": 4, "num_experts": 4,
             "num_experts_per_tok": 2, "vocab_size": 128, "linear_num_key_heads": 2,
             "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 6)" +
         more + "}";
}

Shapes ShapesOf(const TensorUnit& block, const std::string& part) {
  Shapes shapes;
  for (const TensorInfo& tensor : block.tensors) {
    const std::string name = tensor.name.substr(block.name.size() + 1);
    if (name.starts_with(part)) shapes.emplace_back(name.substr(part.size()), tensor.shape);
  }
  return shapes;
}

// What transformers 5.17 counts with its own defaults, which are those of the published models.
TEST(HybridExpertsTest, ParametersAreThoseOfTransformers) {
  EXPECT_EQ(BaseParameters(ParsedModel(kQwen35Moe)), 34'660'610'688);
  EXPECT_EQ(BaseParameters(ParsedModel(kQwen3Next)), 79'674'391'296);
}

TEST(HybridExpertsTest, AbsentKeysAreThoseOfTransformers) {
  const ModelConfig moe = ParsedModel(kQwen35Moe), next = ParsedModel(kQwen3Next);
  EXPECT_EQ(moe.layers, 40);
  EXPECT_EQ(next.layers, 48);
  for (const ModelConfig& model : {moe, next}) {
    EXPECT_EQ(model.hidden, 2048);
    EXPECT_EQ(model.heads, 16);
    EXPECT_EQ(model.kv_heads, 2);
    EXPECT_EQ(model.head_dim, 256);
    EXPECT_EQ(model.ropes[0].rotated, 0.25);
    EXPECT_EQ(model.norm, NormKind::kRmsOnePlus);
    EXPECT_EQ(model.router.weights, RouterWeights::kSoftmaxOfTopK);
    EXPECT_TRUE(model.output_gate && model.Layer(2).delta && !model.Layer(3).delta);
    EXPECT_EQ(model.Layer(0).intermediate, 512);
    EXPECT_EQ(model.Layer(0).shared, 512);
  }
  EXPECT_EQ(moe.Layer(3).experts, 256);
  EXPECT_EQ(moe.Layer(3).chosen, 8);
  EXPECT_EQ(next.Layer(3).experts, 512);
  EXPECT_EQ(next.Layer(3).chosen, 10);
}

TEST(HybridExpertsTest, SomeLayersOfQwen3NextMayBeDense) {
  const ModelConfig model =
      ParsedModel(TinyHybrid("qwen3_next", R"(, "mlp_only_layers": [1], "norm_topk_prob": false)"));
  EXPECT_EQ(model.router.weights, RouterWeights::kSoftmaxOfAll);
  const LayerShape dense = model.Layer(1), sparse = model.Layer(3);
  EXPECT_TRUE(dense.delta && dense.experts == 0 && dense.shared == 0 && dense.intermediate == 96);
  EXPECT_TRUE(!sparse.delta && sparse.experts == 4 && sparse.shared == 48);
  EXPECT_EQ(sparse.intermediate, 32);
}

TEST(HybridExpertsTest, TensorsHaveTheNamesAndShapesOfFiles) {
  const ModelConfig next = ParsedModel(TinyHybrid("qwen3_next"));
  EXPECT_EQ(ShapesOf(BlockTensors(next, 0), "linear_attn."),
            (Shapes{{"in_proj_qkvz.weight", {2 * 16 + 2 * 24, 64}},
                    {"in_proj_ba.weight", {8, 64}},
                    {"conv1d.weight", {56, 1, 4}},
                    {"A_log", {4}},
                    {"dt_bias", {4}},
                    {"norm.weight", {6}},
                    {"out_proj.weight", {64, 24}}}));
  const Shapes mlp{{"gate.weight", {4, 64}},
                   {"experts.gate_up_proj.weight", {4 * 64, 64}},
                   {"experts.down_proj.weight", {4 * 64, 32}},
                   {"shared_expert.gate_proj.weight", {48, 64}},
                   {"shared_expert.up_proj.weight", {48, 64}},
                   {"shared_expert.down_proj.weight", {64, 48}},
                   {"shared_expert_gate.weight", {1, 64}}};
  EXPECT_EQ(ShapesOf(BlockTensors(next, 0), "mlp."), mlp);
  EXPECT_EQ(ShapesOf(BlockTensors(ParsedModel(TinyHybrid("qwen3_5_moe_text")), 3), "mlp."), mlp);
}

// The files of a model: stacks, or single experts.
HeaderTensors FilesOf(const ModelConfig& model, bool stacks) {
  HeaderTensors tensors;
  for (const TensorUnit& unit : TensorsOf(model)) {
    for (TensorInfo tensor : unit.tensors) {
      if (!stacks && !tensor.single_parts.empty()) tensor.parts = tensor.single_parts;
      if (tensor.parts.empty()) tensor.parts = {tensor.name};
      const std::vector<int64_t> shape = tensor.experts > 0 ? tensor.ShapeInFiles() : tensor.shape;
      for (const std::string& part : tensor.parts) tensors[part] = {"BF16", shape, "a.safetensors"};
    }
  }
  return tensors;
}

TEST(HybridExpertsTest, FilesOfQwen35HoldStacksOrSingleExperts) {
  const ModelConfig model = ParsedModel(TinyHybrid("qwen3_5_moe_text"));
  const std::string stack = "model.layers.3.mlp.experts.gate_up_proj";
  const std::string single = "model.layers.3.mlp.experts.2.up_proj.weight";
  HeaderTensors stacks = FilesOf(model, true), singles = FilesOf(model, false);
  EXPECT_EQ(stacks.at(stack).shape, (std::vector<int64_t>{4, 64, 64}));
  EXPECT_EQ(singles.at(single).shape, (std::vector<int64_t>{32, 64}));
  EXPECT_EQ(FindContradiction(model, stacks), "");
  EXPECT_EQ(FindContradiction(model, singles), "");
  stacks.erase(stack);
  EXPECT_EQ(FindContradiction(model, stacks), NoSuchTensor(stack));
  singles.erase(single);
  EXPECT_EQ(FindContradiction(model, singles), NoSuchTensor(single));
  // Those of qwen3_next are single ones.
  const ModelConfig next = ParsedModel(TinyHybrid("qwen3_next"));
  EXPECT_EQ(FindContradiction(next, FilesOf(next, false)), "");
  EXPECT_TRUE(FilesOf(next, true).contains(single));
}

TEST(HybridExpertsTest, ErrorsNameTheKey) {
  for (const auto& [more, says] : std::vector<std::pair<std::string, std::string>>{
           {R"(, "num_experts_per_tok": 5)",
            "\"num_experts_per_tok\" 5 is more than the 4 experts"},
           {R"(, "hidden_size": 400000, "shared_expert_intermediate_size": 1000000000)",
            "\"shared_expert_intermediate_size\" 1000000000 with the other sizes"},
           {R"(, "attn_output_gate": false)", "no released qwen3_next model has it"}}) {
    std::string text = TinyHybrid("qwen3_next");
    text.insert(text.size() - 1, more);
    const auto model = ParseModelConfig(text);
    ASSERT_FALSE(model.ok()) << more;
    EXPECT_THAT(std::string(Message(model.status())), HasSubstr(says));
  }
}

std::vector<std::string> AdaptedBy(const ModelConfig& model, std::vector<std::string> targets,
                                   int64_t layer) {
  const auto units = MakeUnits(model, Lora(2, std::move(targets)));
  EXPECT_TRUE(units.ok()) << units.status();
  std::vector<std::string> adapted;
  constexpr std::string_view kEnd = ".lora_A.weight";
  for (const Parameter& parameter : units->at(layer + 1).parameters) {
    if (!parameter.name.ends_with(kEnd)) continue;
    adapted.push_back(LastName(parameter.name.substr(0, parameter.name.size() - kEnd.size())));
  }
  return adapted;
}

TEST(HybridExpertsTest, AdaptersTakeTheLinearsThatAreNamed) {
  using Names = std::vector<std::string>;
  const ModelConfig next = ParsedModel(TinyHybrid("qwen3_next"));
  EXPECT_EQ(AdaptedBy(next, {"all-linear"}, 0),
            (Names{"in_proj_qkvz", "in_proj_ba", "out_proj", "gate_up_proj", "down_proj",
                   "gate_proj", "up_proj", "down_proj", "shared_expert_gate"}));
  const Names seven{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  for (const char* type : {"qwen3_next", "qwen3_5_moe_text"}) {
    EXPECT_EQ(AdaptedBy(ParsedModel(TinyHybrid(type)), seven, 0),
              (Names{"gate_up_proj", "down_proj", "gate_proj", "up_proj", "down_proj"}))
        << "the stacks and the shared expert, of a layer whose mixer has other names";
  }
  EXPECT_EQ(AdaptedBy(next, {"shared_expert.up_proj", "shared_expert_gate"}, 3),
            (Names{"up_proj", "shared_expert_gate"}));
}

TEST(HybridExpertsTest, QuantisedAreTheLinearsButNotTheRouter) {
  const auto units = MakeUnits(ParsedModel(TinyHybrid("qwen3_next")), Qlora(1, 1, 512));
  ASSERT_TRUE(units.ok()) << units.status();
  for (const Parameter& parameter : units->at(1).parameters) {
    if (parameter.adapter) continue;
    const bool linear = parameter.name.find("_proj") != std::string::npos ||
                        parameter.name.ends_with("shared_expert_gate.weight");
    EXPECT_EQ(parameter.quantized, linear) << parameter.name;
  }
}

// A token passes the experts that it goes to, the shared one, its gate and the router.
TEST(HybridExpertsTest, ATokenIsMultipliedWithTheMatricesOfItsLayer) {
  const ModelConfig model = ParsedModel(TinyHybrid("qwen3_next"));
  auto problem = MakeProblem(model, Full(), 512);
  ASSERT_TRUE(problem.ok()) << problem.status();
  const int64_t mlp = 2 * 3 * 64 * 32 + 3 * 64 * 48 + 64 + 4 * 64;
  EXPECT_EQ(problem->blocks[0].weights, mlp + 64 * (80 + 8) + 64 * 24);
  EXPECT_EQ(problem->blocks[3].weights, mlp + 64 * (128 + 2 * 32) + 64 * 64);
}

}  // namespace
}  // namespace sft::plan
