#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/plan/checkpoint_names.h"
#include "common/plan/parameters.h"
#include "common/plan/tensors.h"
#include "tests/unit/common/plan/experts.h"
#include "tests/unit/common/plan/shapes.h"

// Descriptions of mixtures of experts: what config.json says, and what files must hold.

namespace sft::plan {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

std::vector<int64_t> ExpertsOf(const ModelShape& shape) {
  std::vector<int64_t> experts;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    experts.push_back(shape.Layer(layer).experts);
  }
  return experts;
}

TEST(ExpertsConfigTest, ThePublishedQwen3Of30BIsRead) {
  const ModelConfig model = ParsedModel(kQwen3Of30B);
  EXPECT_EQ(model.family, "qwen3_moe");
  EXPECT_EQ(ExpertsOf(model), std::vector<int64_t>(48, 128));
  const LayerShape layer = model.Layer(47);
  EXPECT_EQ(layer.chosen, 8);
  EXPECT_EQ(layer.intermediate, 768);
  EXPECT_EQ(layer.kv_heads, 4);
  EXPECT_EQ(layer.head_dim, 128);
  EXPECT_EQ(model.router.weights, RouterWeights::kSoftmaxOfTopK);
  EXPECT_EQ(model.qk_norm, QkNorm::kHeads);
  EXPECT_EQ(model.ropes[0].theta, 1e6);
  EXPECT_EQ(model.max_positions, 40'960);
  EXPECT_EQ(model.Window(0), 0);
  EXPECT_FALSE(model.tied_head || model.qkv_bias);
}

TEST(ExpertsConfigTest, ThePublishedMixtralIsRead) {
  const ModelConfig model = ParsedModel(kMixtral8x7B);
  EXPECT_EQ(model.family, "mixtral");
  EXPECT_EQ(ExpertsOf(model), std::vector<int64_t>(32, 8));
  EXPECT_EQ(model.Layer(0).chosen, 2);
  EXPECT_EQ(model.Layer(0).intermediate, 14'336);
  EXPECT_EQ(model.router.weights, RouterWeights::kSoftmaxOfTopK);
  EXPECT_EQ(model.norm_epsilon, 1e-5);
  EXPECT_EQ(model.Window(31), 0);
}

TEST(ExpertsConfigTest, ThePublishedGemma4Of26BIsRead) {
  const ModelConfig model = ParsedModel(kGemma4Of26B);
  EXPECT_EQ(model.family, "gemma4_text");
  EXPECT_EQ(ExpertsOf(model), std::vector<int64_t>(30, 128));
  EXPECT_EQ(model.Layer(0), (LayerShape{.kv_heads = 8,
                                        .head_dim = 256,
                                        .intermediate = 704,
                                        .experts = 128,
                                        .chosen = 8,
                                        .shared = 2112}));
  EXPECT_EQ(model.Layer(5), (LayerShape{.kv_heads = 2,
                                        .head_dim = 512,
                                        .intermediate = 704,
                                        .keys_are_values = true,
                                        .experts = 128,
                                        .chosen = 8,
                                        .shared = 2112}));
  EXPECT_EQ(model.router.weights, RouterWeights::kSoftmaxOfTopK);
  EXPECT_EQ(model.router.score_scale, 1.0 / std::sqrt(2816.0));
  const TensorUnit block = BlockTensors(model, 29);
  std::vector<std::string> names;
  for (const TensorInfo& tensor : block.tensors) {
    names.push_back(tensor.parts.empty() ? tensor.name : tensor.parts.at(0));
  }
  const std::string layer = "model.language_model.layers.29.";
  for (const char* name :
       {"router.proj.weight", "router.scale", "router.per_expert_scale", "experts.gate_up_proj",
        "experts.down_proj", "mlp.gate_proj.weight", "mlp.down_proj.weight",
        "pre_feedforward_layernorm_2.weight", "post_feedforward_layernorm_1.weight",
        "post_feedforward_layernorm_2.weight", "layer_scalar"}) {
    EXPECT_THAT(names, Contains(layer + name));
  }
  EXPECT_EQ(names.size(), 21U);
  // As transformers 5 writes the number; it has no default for any of the three.
  const std::string keys = R"("enable_moe_block": true, "hidden_size_per_layer_input": 0, )";
  const std::string sizes = R"("top_k_experts": 2, "moe_intermediate_size": 32)";
  const auto parsed = [](const std::string& more) {
    return ParseModelConfig(R"({"model_type": "gemma4_text", )" + more + "}");
  };
  EXPECT_TRUE(parsed(keys + R"("num_local_experts": 4, )" + sizes).ok());
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {keys + sizes, "\"num_experts\" is missing"},
           {keys + R"("num_experts": 4, "top_k_experts": 2)",
            "\"moe_intermediate_size\" is missing"},
           {keys + R"("num_experts": 1, )" + sizes, "\"num_experts\" must be at least 2"},
           {R"("enable_moe_block": true, "num_experts": 4, )" + sizes,
            "\"hidden_size_per_layer_input\" must be 0 where enable_moe_block is true"}}) {
    EXPECT_THAT(std::string(Message(parsed(text).status())), HasSubstr(says));
  }
}

TEST(ExpertsConfigTest, KeysThatAreLeftOutMeanWhatTransformersMeans) {
  const ModelConfig qwen = ParsedModel(R"({"model_type": "qwen3_moe"})");
  EXPECT_EQ(qwen.hidden, 2048);
  EXPECT_EQ(qwen.layers, 24);
  EXPECT_EQ(qwen.heads, 32);
  EXPECT_EQ(qwen.vocab, 151'936);
  EXPECT_EQ(qwen.intermediate, 6144);
  EXPECT_EQ(qwen.Layer(0), (LayerShape{.kv_heads = 4,
                                       .head_dim = 64,  // of hidden size and heads
                                       .intermediate = 768,
                                       .experts = 128,
                                       .chosen = 8}));
  EXPECT_EQ(ExpertsOf(qwen), std::vector<int64_t>(24, 128));
  EXPECT_EQ(qwen.router.weights, RouterWeights::kSoftmaxOfAll);
  EXPECT_EQ(qwen.norm_epsilon, 1e-6);
  EXPECT_EQ(qwen.ropes[0].theta, 1e4);
  EXPECT_FALSE(qwen.tied_head);
  const ModelConfig mixtral = ParsedModel(R"({"model_type": "mixtral"})");
  EXPECT_EQ(mixtral.layers, 32);
  EXPECT_EQ(
      mixtral.Layer(0),
      (LayerShape{
          .kv_heads = 8, .head_dim = 128, .intermediate = 14'336, .experts = 8, .chosen = 2}));
  EXPECT_EQ(mixtral.norm_epsilon, 1e-5);
  EXPECT_EQ(mixtral.ropes[0].theta, 1e6);
}

TEST(ExpertsConfigTest, SomeLayersMayHaveNoExperts) {
  const ModelConfig named = ParsedModel(TinyExperts(R"(, "mlp_only_layers": [0, 3])"));
  EXPECT_EQ(ExpertsOf(named), (std::vector<int64_t>{0, 8, 8, 0}));
  EXPECT_EQ(named.Layer(0).intermediate, 96);
  EXPECT_EQ(named.Layer(1).intermediate, 32);
  const ModelConfig every_second = ParsedModel(TinyExperts(R"(, "decoder_sparse_step": 2)"));
  EXPECT_EQ(ExpertsOf(every_second), (std::vector<int64_t>{0, 8, 0, 8}));
  EXPECT_FALSE(named.SameAttention(0, 1));
  EXPECT_TRUE(named.SameAttention(1, 2));
}

TEST(ExpertsConfigTest, MixtralsWindowCountsInAllLayers) {
  EXPECT_EQ(ParsedModel(R"({"model_type": "mixtral", "sliding_window": 4096})").Window(7), 4096);
}

TEST(ExpertsConfigTest, BadKeysAreNamed) {
  const auto mixtral = [](const std::string& more) {
    return R"({"model_type": "mixtral", )" + more + "}";
  };
  for (const auto& [config, says] : std::vector<std::pair<std::string, std::string>>{
           {TinyExperts(R"(, "num_experts_per_tok": 9)"),
            "\"num_experts_per_tok\" 9 is more than the 8 experts"},
           {mixtral(R"("num_experts_per_tok": 9)"), "9 is more than the 8 experts"},
           {TinyExperts(R"(, "num_experts": 0)"), "\"num_experts\" must be a whole number above 0"},
           {mixtral(R"("num_local_experts": 0)"), "\"num_local_experts\" must be a whole number"},
           {TinyExperts(R"(, "num_experts_per_tok": 0)"), "\"num_experts_per_tok\" must be"},
           {TinyExperts(R"(, "moe_intermediate_size": -1)"), "\"moe_intermediate_size\" must be"},
           {TinyExperts(R"(, "decoder_sparse_step": 0)"), "\"decoder_sparse_step\" must be"},
           {TinyExperts(R"(, "mlp_only_layers": 3)"), "\"mlp_only_layers\" has the wrong type"},
           {TinyExperts(R"(, "norm_topk_prob": 1)"), "\"norm_topk_prob\" must be true or false"},
           {TinyExperts(R"(, "moe_intermediate_size": 4000000000, "hidden_size": 65536)"),
            "\"num_experts\" 8 with the other sizes makes"},
           {mixtral(R"("intermediate_size": 400000000, "num_local_experts": 4096)"),
            "more than any model has"},
           {TinyExperts(R"(, "num_experts": 4000000000, "hidden_size": 8, "num_attention_heads": 1,
                "num_key_value_heads": 1, "moe_intermediate_size": 1)"),
            "\"num_experts\" 4000000000 in each of 4 layers are more than any model has"},
           {TinyExperts(R"(, "use_sliding_window": true)"),
            "\"use_sliding_window\" is not supported for qwen3_moe"},
           {mixtral(R"("router_jitter_noise": 0.1)"),
            "\"router_jitter_noise\" is not supported: set it to 0"}}) {
    const auto model = ParseModelConfig(config);
    ASSERT_FALSE(model.ok()) << config;
    EXPECT_THAT(std::string(Message(model.status())), HasSubstr(says));
  }
  EXPECT_TRUE(ParseModelConfig(mixtral(R"("router_jitter_noise": 0.0)")).ok());
}

TEST(ExpertsConfigTest, GroupsOfExpertsThatDoNotFitAreNamed) {
  const auto config = [](int groups, int best, int chosen) {
    return fmt::format(R"({{"model_type": "glm4_moe", "head_dim": 128, "n_routed_experts": 8,
                            "n_group": {}, "topk_group": {}, "num_experts_per_tok": {}}})",
                       groups, best, chosen);
  };
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {config(3, 1, 2), "\"n_group\" 3 does not divide 8 experts into groups of two or more"},
           {config(8, 2, 2), "\"n_group\" 8 does not divide 8 experts into groups of two or more"},
           {config(4, 5, 2), "\"topk_group\" 5 is more than the 4 groups"},
           {config(1, 2, 2), "\"topk_group\" 2 is more than the 1 groups"},
           {config(4, 1, 3), "\"topk_group\" 1 groups of 2 have fewer than 3 experts"},
           {config(4, 2, 9), "\"num_experts_per_tok\" 9 is more than the 8 experts"},
           {config(0, 1, 2), "\"n_group\" must be a whole number above 0"},
           {config(4, 0, 2), "\"topk_group\" must be a whole number above 0"}}) {
    const auto model = ParseModelConfig(text);
    ASSERT_FALSE(model.ok()) << text;
    EXPECT_THAT(std::string(Message(model.status())), HasSubstr(says));
  }
  const ModelConfig model = ParsedModel(config(4, 2, 4));
  EXPECT_EQ(model.router.groups, 4);
  EXPECT_EQ(model.router.best_groups, 2);
}

TEST(ExpertsConfigTest, RelativesThatAreNotReadSayWhatTheyHaveBeside) {
  for (const auto& [type, reason] : std::vector<std::pair<std::string, std::string>>{
           {"qwen2_moe", "the nearest is qwen3_moe: an expert that all tokens go to"},
           {"olmoe", "the nearest is qwen3_moe: queries and keys"}}) {
    const auto model = ParseModelConfig("{\"model_type\": \"" + type + "\"}");
    ASSERT_FALSE(model.ok());
    EXPECT_THAT(std::string(Message(model.status())), HasSubstr(reason));
  }
}

TEST(ExpertsConfigTest, ParametersAreThePublishedOnes) {
  const ModelConfig qwen = ParsedModel(kQwen3Of30B);
  EXPECT_EQ(BaseParameters(qwen), 30'532'122'624);
  const int64_t experts = int64_t{48} * 128 * 3 * 768 * 2048;
  EXPECT_EQ(experts, 28'991'029'248);
  EXPECT_EQ(ActiveParameters(qwen), 30'532'122'624 - experts + experts / 16);
  EXPECT_EQ(ActiveParameters(qwen), 3'353'032'704);
  EXPECT_EQ(ActiveParameters(qwen) - qwen.vocab * qwen.hidden, 3'041'867'776);
  const ModelConfig mixtral = ParsedModel(kMixtral8x7B);
  EXPECT_EQ(BaseParameters(mixtral), 46'702'792'704);
  EXPECT_EQ(ActiveParameters(mixtral), 12'879'925'248);
  const ModelConfig gemma = ParsedModel(kGemma4Of26B);
  EXPECT_EQ(BaseParameters(gemma), 25'233'141'760 + 30);  // beside these, a constant in each layer
  EXPECT_EQ(ActiveParameters(gemma), 25'233'141'790 - 22'837'985'280 / 16 * 15);
  EXPECT_EQ(ActiveParameters(Qwen3Of8B()), BaseParameters(Qwen3Of8B()));
}

TEST(ExpertsConfigTest, AllExpertsOfALayerAreTwoStacks) {
  const ModelConfig qwen = ParsedModel(TinyExperts(R"(, "mlp_only_layers": [0])"));
  const TensorUnit block = BlockTensors(qwen, 2);
  const auto find = [&](const std::string& end) {
    const auto found = std::find_if(block.tensors.begin(), block.tensors.end(),
                                    [&](const TensorInfo& t) { return t.name.ends_with(end); });
    EXPECT_NE(found, block.tensors.end()) << end;
    return found == block.tensors.end() ? TensorInfo() : *found;
  };
  const TensorInfo router = find("mlp.gate.weight");
  EXPECT_EQ(router.role, TensorRole::kRouter);
  EXPECT_EQ(router.shape, (std::vector<int64_t>{8, 64}));
  const TensorInfo gate_up = find("mlp.experts.gate_up_proj.weight");
  EXPECT_EQ(gate_up.shape, (std::vector<int64_t>{8 * 2 * 32, 64}));
  EXPECT_EQ(gate_up.experts, 8);
  ASSERT_EQ(gate_up.parts.size(), 16U);
  EXPECT_EQ(gate_up.parts[0], "model.layers.2.mlp.experts.0.gate_proj.weight");
  EXPECT_EQ(gate_up.parts[1], "model.layers.2.mlp.experts.0.up_proj.weight");
  EXPECT_EQ(gate_up.parts[15], "model.layers.2.mlp.experts.7.up_proj.weight");
  const TensorInfo down = find("mlp.experts.down_proj.weight");
  EXPECT_EQ(down.shape, (std::vector<int64_t>{8 * 64, 32}));
  EXPECT_EQ(down.parts.back(), "model.layers.2.mlp.experts.7.down_proj.weight");
  EXPECT_EQ(block.shared_matrices.size(), 4U);
  std::vector<std::string> dense;
  for (const TensorInfo& tensor : BlockTensors(qwen, 0).tensors) dense.push_back(tensor.name);
  EXPECT_THAT(dense, IsSupersetOf({"model.layers.0.mlp.gate_proj.weight",
                                   "model.layers.0.mlp.up_proj.weight",
                                   "model.layers.0.mlp.down_proj.weight"}));
}

TEST(ExpertsConfigTest, MixtralsFilesHaveNamesOfTheirOwn) {
  const ModelConfig mixtral = ParsedModel(kMixtral8x7B);
  std::vector<std::string> names;
  for (const TensorInfo& tensor : BlockTensors(mixtral, 31).tensors) {
    if (tensor.parts.empty()) names.push_back(tensor.name);
    names.insert(names.end(), tensor.parts.begin(), tensor.parts.end());
  }
  EXPECT_THAT(names, IsSupersetOf({"model.layers.31.block_sparse_moe.gate.weight",
                                   "model.layers.31.block_sparse_moe.experts.0.w1.weight",
                                   "model.layers.31.block_sparse_moe.experts.7.w2.weight",
                                   "model.layers.31.block_sparse_moe.experts.7.w3.weight"}));
  EXPECT_EQ(names.size(), 2U + 4 + 1 + 3 * 8);
}

HeaderTensors FilesOf(const ModelShape& shape) {
  HeaderTensors tensors;
  for (const TensorUnit& unit : TensorsOf(shape)) {
    for (const TensorInfo& tensor : unit.tensors) {
      if (tensor.parts.empty()) tensors[tensor.name] = {"BF16", tensor.shape, "a.safetensors"};
      for (const std::string& part : tensor.parts) {
        tensors[part] = {"BF16", tensor.shape, "a.safetensors"};
        tensors[part].shape[0] /= static_cast<int64_t>(tensor.parts.size());
      }
    }
  }
  return tensors;
}

TEST(ExpertsConfigTest, FilesMustHoldEachExpertAndNoOther) {
  const ModelConfig qwen = ParsedModel(TinyExperts(R"(, "mlp_only_layers": [0])"));
  const HeaderTensors whole = FilesOf(qwen);
  EXPECT_EQ(FindContradiction(qwen, whole), "");
  EXPECT_EQ(FindContradiction(ParsedModel(kMixtral8x7B), FilesOf(ParsedModel(kMixtral8x7B))), "");

  const std::string up = "model.layers.3.mlp.experts.7.up_proj.weight";
  HeaderTensors tensors = whole;
  tensors.erase(up);
  EXPECT_EQ(FindContradiction(qwen, tensors), NoSuchTensor(up));
  tensors = whole;
  tensors[up].shape = {64, 32};
  EXPECT_EQ(FindContradiction(qwen, tensors),
            "a.safetensors: " + OtherShape(up, {64, 32}, {32, 64}));
  tensors = whole;
  tensors[up].type = "F8_E4M3";
  EXPECT_EQ(FindContradiction(qwen, tensors), OtherType(up, "F8_E4M3"));
  tensors = whole;
  const std::string ninth = "model.layers.3.mlp.experts.8.up_proj.weight";
  tensors[ninth] = {"BF16", {32, 64}, "a.safetensors"};
  EXPECT_EQ(FindContradiction(qwen, tensors), UnknownTensor(ninth));
  tensors = whole;
  tensors.erase("model.layers.1.mlp.gate.weight");
  EXPECT_EQ(FindContradiction(qwen, tensors), NoSuchTensor("model.layers.1.mlp.gate.weight"));
  // A layer without experts has none in the files either.
  tensors = whole;
  const std::string of_dense = "model.layers.0.mlp.experts.0.up_proj.weight";
  tensors[of_dense] = {"BF16", {32, 64}, "a.safetensors"};
  EXPECT_EQ(FindContradiction(qwen, tensors), UnknownTensor(of_dense));
}

TEST(ExpertsConfigTest, A129thExpertIsNoTensorOfQwen3) {
  const ModelConfig qwen = ParsedModel(kQwen3Of30B);
  HeaderTensors tensors = FilesOf(qwen);
  EXPECT_EQ(tensors.size(), 3U + 48 * (2 + 6 + 1 + 3 * 128));
  EXPECT_EQ(FindContradiction(qwen, tensors), "");
  const std::string name = "model.layers.47.mlp.experts.128.down_proj.weight";
  tensors[name] = {"BF16", {2048, 768}, "a.safetensors"};
  EXPECT_EQ(FindContradiction(qwen, tensors), UnknownTensor(name));
}

TEST(ExpertsConfigTest, WeightsOfExpertsInFp8NeedTheirScales) {
  ModelConfig qwen = ParsedModel(TinyExperts());
  qwen.stored.form = StoredForm::kFp8;
  HeaderTensors tensors = FilesOf(qwen);
  const std::string up = "model.layers.1.mlp.experts.3.up_proj.weight";
  tensors[up].type = "F8_E4M3";
  EXPECT_EQ(FindContradiction(qwen, tensors), NoScales(up, up + kFp8Scales));
  tensors[up + kFp8Scales] = {"F32", {1, 1}, ""};
  EXPECT_EQ(FindContradiction(qwen, tensors), "");
}

TEST(RouterBalanceJobTest, IsForRoutersThatTakeASoftmax) {
  spec::JobSpec job;
  job.hyperparameters.router_aux_loss_coef = 0.01;
  job.hyperparameters.sequence_length = 512;
  const auto problem = [&](const char* config) {
    const auto model = ParseModelConfig(config);
    EXPECT_TRUE(model.ok()) << model.status();
    const auto found = CheckJob(*model, job);
    return found ? found->key + ": " + found->message : std::string();
  };
  EXPECT_EQ(problem(R"({"model_type": "mixtral"})"), "");
  EXPECT_EQ(problem(R"({"model_type": "glm4_moe", "head_dim": 128})"),
            "hyperparameters.router_aux_loss_coef: the routers of glm4_moe models are balanced by "
            "their correction, which training leaves as it is: leave it out");
  EXPECT_EQ(problem(R"({"model_type": "gpt2"})"),
            "hyperparameters.router_aux_loss_coef: this gpt2 model has no experts: leave it out");
}

}  // namespace
}  // namespace sft::plan
