#include "worker/engine/generate/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

const Ids kPrompt = {3, 17, 42, 8};
constexpr int kNew = 24;

// A tiny model whose weights are so large that every layer decides the next token.
void WriteLoudModel(const std::filesystem::path& dir, const std::string& config = TinyConfig()) {
  WriteTinyModel(dir, config);
  std::vector<NamedTensor> tensors;
  {
    const auto file = SafetensorsFile::Open(dir / "model.safetensors");
    for (const auto& [name, info] : file->tensors()) {
      const bool loud = info.shape.size() == 2;
      tensors.push_back({name, file->View(name).mul(loud ? 5.0 : 1.0)});
    }
  }
  WriteSafetensors(dir / "model.safetensors", tensors);
}

std::string Mistral(const std::string& window) {
  std::string config = TinyConfig(", \"sliding_window\": " + window);
  config.replace(config.find("llama"), 5, "mistral");
  return config;
}

// Greedy decoding without a cache: a forward pass over everything for each token.
Ids WithoutCache(Generator& generator, Ids tokens, int count) {
  Ids made;
  for (int i = 0; i < count; ++i) {
    made.push_back(static_cast<int32_t>(generator.Logits(tokens)[-1].argmax().item<int64_t>()));
    tokens.push_back(made.back());
  }
  return made;
}

Tensor Noise(std::vector<int64_t> shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kFloat);
}

class GeneratorTest : public testing::Test {
 protected:
  Generator Open(const std::string& adapter = "") const {
    return Generator(
        {.model_dir = dir_ / "model", .adapter_dir = adapter.empty() ? "" : dir_ / adapter});
  }

  // An adapter of the first layer's q_proj [32, 32] with B as given.
  void PutAdapter(const std::string& name, const Tensor& b,
                  const std::vector<NamedTensor>& biases = {},
                  const std::string& module = "model.layers.0.self_attn.q_proj") const {
    AdapterConfig config;
    config.r = 2;
    config.alpha = 4;
    config.target_modules = {"q_proj"};
    config.bias = biases.empty() ? "none" : "all";
    const std::vector<LoraPair> pairs{{module, Noise({2, 32}, 1), b}};
    WriteAdapter({.target = dir_ / name}, config, pairs, biases);
  }

  std::string Refusal(const std::string& adapter) const {
    try {
      Open(adapter);
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  }

  TempDir dir_;
};

TEST_F(GeneratorTest, EveryTokenIsTheLikeliestOfAWholeForwardPass) {
  WriteLoudModel(dir_ / "model");
  Generator generator = Open();
  const Ids made = generator.Generate(kPrompt, kNew, {});
  EXPECT_EQ(made.size(), static_cast<size_t>(kNew));
  EXPECT_EQ(made, WithoutCache(generator, kPrompt, kNew));
  EXPECT_EQ(made, generator.Generate(kPrompt, kNew, {})) << "a second answer starts afresh";
}

// What NF4 with a second quantisation makes of a weight, by the operations that training uses.
Tensor ThroughNf4(const Tensor& weight) {
  const ops::Nf4Codes nf4 = ops::Nf4Quantize(weight.contiguous().view({-1}));
  const ops::NestedAbsmax nested = ops::AbsmaxQuantize(nf4.absmax);
  Tensor values = at::empty(weight.sizes(), at::kFloat);
  ops::Nf4DequantizeNested(values, nf4.codes, nested.codes, nested.nested_absmax, nested.offset);
  return values;
}

TEST_F(GeneratorTest, InNf4ItIsTheModelWhoseLinearLayersHaveThoseValues) {
  WriteLoudModel(dir_ / "model", R"({"model_type": "llama", "vocab_size": 96, "hidden_size": 64,
      "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
      "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": false})");
  std::filesystem::copy(dir_ / "model", dir_ / "values");
  std::vector<NamedTensor> tensors;
  {
    const auto file = SafetensorsFile::Open(dir_ / "model" / "model.safetensors");
    for (const auto& [name, info] : file->tensors()) {
      const Tensor value = file->View(name).to(at::kFloat);
      tensors.push_back({name, name.ends_with("_proj.weight") ? ThroughNf4(value) : value});
    }
  }
  WriteSafetensors(dir_ / "values" / "model.safetensors", tensors);
  Generator nf4({.model_dir = dir_ / "model", .nf4 = true});
  Generator values({.model_dir = dir_ / "values"});
  const Tensor expected = values.Logits(kPrompt);
  EXPECT_LT((nf4.Logits(kPrompt) - expected).abs().max().item<float>(),
            1e-4f * expected.abs().max().item<float>());
  EXPECT_EQ(nf4.Generate(kPrompt, kNew, {}), values.Generate(kPrompt, kNew, {}));
  EXPECT_FALSE(at::allclose(Open().Logits(kPrompt), expected, 1e-2, 1e-2)) << "NF4 changes nothing";
}

TEST_F(GeneratorTest, AStopTokenEndsTheAnswerAndIsNoPartOfIt) {
  WriteLoudModel(dir_ / "model");
  Generator generator = Open();
  const Ids whole = generator.Generate(kPrompt, kNew, {});
  const int32_t stop = whole[kNew / 2];
  const Ids expected(whole.begin(), std::find(whole.begin(), whole.end(), stop));
  // One that never comes beside it: any of the stop tokens ends the answer.
  const int32_t other = kTinyVocabulary;
  EXPECT_EQ(generator.Generate(kPrompt, kNew, Ids{other, stop}), expected);
  EXPECT_EQ(generator.Generate(kPrompt, kNew, Ids{whole[0]}), Ids{});
}

TEST_F(GeneratorTest, EndsAtTheTokenLimitAndWhenTheListenerHasEnough) {
  WriteLoudModel(dir_ / "model");
  Generator generator = Open();
  const Ids whole = generator.Generate(kPrompt, kNew, {});
  EXPECT_EQ(generator.Generate(kPrompt, 3, {}), Ids(whole.begin(), whole.begin() + 3));
  EXPECT_EQ(generator.Generate(kPrompt, 1, {}), Ids(whole.begin(), whole.begin() + 1));
  Ids heard;
  const Ids made = generator.Generate(kPrompt, kNew, {}, [&heard](int32_t token) {
    heard.push_back(token);
    return heard.size() < 5;
  });
  EXPECT_EQ(made, Ids(whole.begin(), whole.begin() + 5));
  EXPECT_EQ(heard, made);
}

TEST_F(GeneratorTest, AnEmptyPromptIsRefused) {
  WriteLoudModel(dir_ / "model");
  Generator generator = Open();
  EXPECT_THROW(generator.Generate({}, 1, {}), UserError);
}

// The prompt is shorter than the window and then longer than it; the answer passes it in both.
TEST_F(GeneratorTest, TheCacheOfASlidingWindowEqualsWholeForwardPasses) {
  const Ids long_prompt = {3, 17, 42, 8, 91, 5, 60, 33, 2, 77};
  std::vector<Ids> answers;
  for (const char* window : {"6", "null"}) {
    WriteLoudModel(dir_ / "model", Mistral(window));
    Generator generator = Open();
    for (const Ids& prompt : {kPrompt, long_prompt}) {
      answers.push_back(generator.Generate(prompt, kNew, {}));
      EXPECT_EQ(answers.back(), WithoutCache(generator, prompt, kNew)) << window;
    }
  }
  EXPECT_NE(answers[0], answers[2]) << "the window makes no difference: nothing was tested";
  EXPECT_NE(answers[1], answers[3]) << "the window makes no difference: nothing was tested";
}

TEST_F(GeneratorTest, AnAdapterChangesTheAnswerAndAZeroOneDoesNot) {
  WriteLoudModel(dir_ / "model");
  PutAdapter("trained", Noise({32, 2}, 2));
  PutAdapter("fresh", at::zeros({32, 2}));
  const Ids base = Open().Generate(kPrompt, kNew, {});
  EXPECT_EQ(Open("fresh").Generate(kPrompt, kNew, {}), base);
  Generator adapted = Open("trained");
  const Ids made = adapted.Generate(kPrompt, kNew, {});
  EXPECT_NE(made, base);
  EXPECT_EQ(made, WithoutCache(adapted, kPrompt, kNew));
}

TEST_F(GeneratorTest, AnAdaptersBiasesTakeThePlaceOfTheModels) {
  WriteLoudModel(dir_ / "model", TinyConfig(", \"attention_bias\": true"));
  const std::string name = "model.layers.1.self_attn.o_proj.bias";
  const auto file = SafetensorsFile::Open(dir_ / "model/model.safetensors");
  const Tensor own = file->View(name).to(at::kFloat);
  PutAdapter("same", at::zeros({32, 2}), {{name, own}});
  PutAdapter("other", at::zeros({32, 2}), {{name, own.add(Noise({32}, 3))}});
  const Tensor base = Open().Logits(kPrompt);
  EXPECT_TRUE(at::equal(Open("same").Logits(kPrompt), base));
  EXPECT_GT(Open("other").Logits(kPrompt).sub(base).abs().max().item<float>(), 0.1f);
}

TEST_F(GeneratorTest, AnAdapterOfAnotherModelIsRefused) {
  WriteLoudModel(dir_ / "model");
  PutAdapter("layers", Noise({32, 2}, 2), {}, "model.layers.2.self_attn.q_proj");
  PutAdapter("shape", Noise({31, 2}, 2));
  PutAdapter("bias", Noise({32, 2}, 2), {{"model.layers.0.self_attn.q_proj.bias", Noise({32}, 3)}});
  EXPECT_THAT(Refusal("layers"), HasSubstr("model.layers.2.self_attn.q_proj"));
  EXPECT_THAT(Refusal("shape"), HasSubstr("linear layer of that shape"));
  EXPECT_THAT(Refusal("bias"), HasSubstr("self_attn.q_proj.bias"));
}

}  // namespace
}  // namespace sft::engine
