#include <ATen/Parallel.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/log_softmax.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/generate/generator.h"

// Answers of a model with gated DeltaNets, whose states are carried from step to step.

namespace sft::engine {
namespace {

constexpr char kHybrid[] = R"({"model_type": "qwen3_5_text", "vocab_size": 96, "hidden_size": 32,
  "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "full_attention_interval": 2,
  "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
  "linear_value_head_dim": 8, "max_position_embeddings": 128})";

std::vector<GenerationRequest> HybridRequests() {
  std::vector<GenerationRequest> requests;
  const int lengths[] = {1, 40, 5, 17, 3};
  for (int i = 0; i < 5; ++i) {
    GenerationRequest request;
    for (int k = 0; k < lengths[i]; ++k) {
      request.prompt.push_back((i * 31 + k * k * 7 + 5) % kTinyVocabulary);
    }
    request.max_new_tokens = 6 + 3 * i;
    request.log_probabilities = i != 4;
    if (i == 4) request.beams = {.beams = 3, .answers = 3};
    requests.push_back(request);
  }
  return requests;
}

class HybridGeneratorTest : public testing::Test {
 protected:
  HybridGeneratorTest() { WriteTinyModel(dir_.path(), kHybrid); }

  static std::vector<GenerationAnswer> Answers(Generator& generator,
                                               const std::vector<GenerationRequest>& requests,
                                               const BatchOptions& options = {}) {
    const auto batch = generator.MakeBatch(options);
    for (const GenerationRequest& request : requests) batch->Add(request);
    std::vector<GenerationAnswer> answers;
    while (!batch->idle()) {
      for (GenerationAnswer& answer : batch->Step()) answers.push_back(std::move(answer));
    }
    std::ranges::sort(answers, {}, [](const GenerationAnswer& answer) {
      return std::pair(answer.request, answer.sample);
    });
    return answers;
  }

  static void ExpectSame(const std::vector<GenerationAnswer>& answers,
                         const std::vector<GenerationAnswer>& expected) {
    ASSERT_EQ(answers.size(), expected.size());
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_FALSE(expected[i].tokens.empty());
      EXPECT_EQ(answers[i].tokens, expected[i].tokens) << i;
      EXPECT_EQ(answers[i].log_probabilities, expected[i].log_probabilities) << i;
      EXPECT_EQ(answers[i].score, expected[i].score) << i;
    }
  }

  TempDir dir_;
};

// States that others have left are there for those that come later.
TEST_F(HybridGeneratorTest, TogetherTheyHaveTheBitsOfEachAlone) {
  Generator generator({.model_dir = dir_.path()});
  const std::vector<GenerationRequest> requests = HybridRequests();
  std::vector<GenerationAnswer> alone;
  for (const GenerationRequest& request : requests) {
    for (GenerationAnswer& answer : Answers(generator, {request})) alone.push_back(answer);
  }
  ExpectSame(Answers(generator, requests), alone);
  ExpectSame(Answers(generator, requests, {.most_requests = 3}), alone);
}

TEST_F(HybridGeneratorTest, TheSizeOfStepsAndTheNumberOfThreadsChangeNothing) {
  Generator generator({.model_dir = dir_.path()});
  const std::vector<GenerationRequest> requests = HybridRequests();
  const std::vector<GenerationAnswer> expected = Answers(generator, requests);
  const int threads = at::get_num_threads();
  for (const int64_t step : {1, 7, 64}) {
    at::set_num_threads(step == 7 ? 1 : threads);
    ExpectSame(Answers(generator, requests, {.step_tokens = step}), expected);
  }
  at::set_num_threads(threads);
}

TEST_F(HybridGeneratorTest, EachTokenIsTheLikeliestOfAWholeForward) {
  Generator generator({.model_dir = dir_.path()});
  std::vector<int32_t> tokens = HybridRequests()[3].prompt;
  for (const int32_t token : generator.Generate(tokens, 60, {})) {
    EXPECT_EQ(token, generator.Logits(tokens)[-1].argmax().item<int64_t>());
    tokens.push_back(token);
  }
}

// The few rows of in_proj_b and in_proj_a are quantised, too.
TEST_F(HybridGeneratorTest, LinearsMayBeHeldInNf4) {
  std::string wide = kHybrid;
  wide.replace(wide.find("\"hidden_size\": 32"), 17, "\"hidden_size\": 64");
  WriteTinyModel(dir_ / "wide", wide);
  Generator generator({.model_dir = dir_ / "wide", .nf4 = true});
  std::vector<int32_t> tokens = HybridRequests()[3].prompt;
  for (const int32_t token : generator.Generate(tokens, 20, {})) {
    EXPECT_EQ(token, generator.Logits(tokens)[-1].argmax().item<int64_t>());
    tokens.push_back(token);
  }
}

// The first answer of a search has a sum of log-probabilities that whole forwards give, too.
TEST_F(HybridGeneratorTest, BeamsGoOnFromTheStatesOfThoseTheyComeFrom) {
  Generator generator({.model_dir = dir_.path()});
  const GenerationRequest request = HybridRequests()[4];
  for (const GenerationAnswer& answer : Answers(generator, {request})) {
    std::vector<int32_t> tokens = request.prompt;
    double sum = 0;
    for (const int32_t token : answer.tokens) {
      sum += generator.Logits(tokens)[-1].log_softmax(0)[token].item<double>();
      tokens.push_back(token);
    }
    EXPECT_NEAR(answer.score, sum / static_cast<double>(answer.tokens.size()), 1e-4);
  }
}

TEST_F(HybridGeneratorTest, ARequestTakesMemoryForItsStates) {
  Generator generator({.model_dir = dir_.path()});
  EXPECT_EQ(generator.StateBytes(), 2 * 4 * (4 * 8 * 8 + 3 * (2 * 2 * 8 + 4 * 8)));
  EXPECT_EQ(generator.CacheTokenBytes(), 2 * 4 * 2 * 2 * 16);
}

}  // namespace
}  // namespace sft::engine
