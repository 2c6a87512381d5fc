#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/parity/golden_case.h"
#include "worker/engine/generate/batch_generator.h"
#include "worker/engine/generate/generator.h"

// Answers and probabilities against transformers' and peft's.

namespace sft::engine {
namespace {

using Ids = std::vector<int32_t>;

nlohmann::json ReadGolden(const char* file) {
  std::ifstream text(GoldenDir() / "generation" / file);
  return nlohmann::json::parse(text);
}

// A prompt and the first tokens of its answer; what follows is too close to call.
struct GreedyCase {
  Ids prompt, answer;
  std::vector<double> log_probabilities;
  bool adapter = false;
  bool repeats = true;

  GenerationRequest Request() const {
    return {.prompt = prompt,
            .max_new_tokens = static_cast<int64_t>(answer.size()),
            .sampling = {.no_repeat_ngram = repeats ? 0 : 1},
            .adapter = adapter,
            .log_probabilities = true};
  }
};

std::vector<GreedyCase> CasesOf(const nlohmann::json& golden) {
  std::vector<GreedyCase> cases;
  for (size_t i = 0; i < golden["prompts"].size(); ++i) {
    for (const std::string kind : {"plain", "unrepeated", "adapted"}) {
      const nlohmann::json& answer = golden[kind][i];
      cases.push_back({golden["prompts"][i].get<Ids>(), answer["tokens"].get<Ids>(),
                       answer["log_probabilities"].get<std::vector<double>>(), kind == "adapted",
                       kind != "unrepeated"});
    }
  }
  return cases;
}

std::vector<GenerationAnswer> AnswersOf(Generator& generator, const std::vector<GreedyCase>& cases,
                                        const BatchOptions& options) {
  const auto batch = generator.MakeBatch(options);
  for (const GreedyCase& one : cases) batch->Add(one.Request());
  std::vector<GenerationAnswer> answers(cases.size());
  while (!batch->idle()) {
    for (GenerationAnswer& answer : batch->Step()) {
      answers[static_cast<size_t>(answer.request)] = std::move(answer);
    }
  }
  return answers;
}

class GenerationParityTest : public testing::TestWithParam<std::string> {
 protected:
  std::vector<GreedyCase> cases_ = CasesOf(ReadGolden("greedy.json").at(GetParam()));
  Generator generator_{{.model_dir = GoldenDir() / "families" / GetParam(),
                        .adapter_dir = GoldenDir() / "families" / GetParam() / "adapter"}};
};

// All in one batch, with the adapter and without it side by side.
TEST_P(GenerationParityTest, GreedyAnswersEqualTransformers) {
  const std::vector<GenerationAnswer> answers = AnswersOf(generator_, cases_, {});
  for (size_t i = 0; i < cases_.size(); ++i) {
    EXPECT_GE(cases_[i].answer.size(), 8u) << "too little is compared";
    ASSERT_EQ(answers[i].tokens, cases_[i].answer)
        << "prompt of " << cases_[i].prompt.size() << ", adapter " << cases_[i].adapter;
    for (size_t j = 0; j < cases_[i].answer.size(); ++j) {
      EXPECT_NEAR(answers[i].log_probabilities[j], cases_[i].log_probabilities[j], 1e-4) << j;
    }
  }
}

TEST_P(GenerationParityTest, AnswersHaveTheSameBitsAloneAndInSmallSteps) {
  const std::vector<GenerationAnswer> together = AnswersOf(generator_, cases_, {});
  const std::vector<GenerationAnswer> pieces =
      AnswersOf(generator_, cases_, {.most_requests = 4, .step_tokens = 5});
  for (size_t i = 0; i < cases_.size(); ++i) {
    const GenerationAnswer alone = AnswersOf(generator_, {cases_[i]}, {})[0];
    EXPECT_EQ(together[i].log_probabilities, alone.log_probabilities) << "case " << i;
    EXPECT_EQ(pieces[i].log_probabilities, alone.log_probabilities) << "case " << i;
  }
}

BeamOptions BeamsOf(const nlohmann::json& options) {
  BeamOptions beams{.beams = options["num_beams"], .answers = options["num_beams"]};
  beams.length_penalty = options.value("length_penalty", 1.0);
  const nlohmann::json early = options.value("early_stopping", nlohmann::json(false));
  if (early == true) beams.stop = BeamStop::kYes;
  if (early == "never") beams.stop = BeamStop::kNever;
  return beams;
}

// All searches in one batch.
TEST_P(GenerationParityTest, SearchesEqualTransformers) {
  const nlohmann::json cases = ReadGolden("beams.json").at(GetParam());
  ASSERT_EQ(cases.size(), 6u);
  const auto batch = generator_.MakeBatch({});
  for (const nlohmann::json& one : cases) {
    const nlohmann::json& options = one["options"];
    batch->Add({.prompt = one["prompt"].get<Ids>(),
                .max_new_tokens = options["max_new_tokens"],
                .sampling = {.repetition_penalty = options.value("repetition_penalty", 1.0),
                             .no_repeat_ngram = options.value("no_repeat_ngram_size", 0),
                             .min_new_tokens = options.value("min_new_tokens", 0)},
                .beams = BeamsOf(options),
                .stop_ids = one["eos"].get<Ids>(),
                .adapter = false});
  }
  size_t compared = 0;
  while (!batch->idle()) {
    for (const GenerationAnswer& answer : batch->Step()) {
      const nlohmann::json& one = cases[static_cast<size_t>(answer.request)];
      const nlohmann::json& golden = one["answers"][static_cast<size_t>(answer.sample)];
      EXPECT_EQ(answer.tokens, golden["tokens"].get<Ids>())
          << one["options"].dump() << ", answer " << answer.sample;
      EXPECT_NEAR(answer.score, golden["score"].get<double>(), 1e-4) << one["options"].dump();
      EXPECT_EQ(answer.reason == EndReason::kStopToken, golden["stopped"].get<bool>());
      ++compared;
    }
  }
  EXPECT_EQ(compared, 21u);
}

std::vector<std::string> Families() {
  const nlohmann::json golden = ReadGolden("greedy.json");
  std::vector<std::string> names;
  for (const auto& item : golden.items()) names.push_back(item.key());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Families, GenerationParityTest, testing::ValuesIn(Families()),
                         [](const auto& info) { return info.param; });

SamplingOptions OptionsOf(const nlohmann::json& golden) {
  return {.temperature = golden["temperature"],
          .top_k = golden["top_k"],
          .top_p = golden["top_p"],
          .min_p = golden["min_p"],
          .repetition_penalty = golden["repetition_penalty"],
          .no_repeat_ngram = golden["no_repeat_ngram_size"],
          .min_new_tokens = golden["min_new_tokens"]};
}

TEST(SamplingParityTest, ProbabilitiesEqualTransformersProcessors) {
  const nlohmann::json golden = ReadGolden("sampling.json");
  const GoldenTensors tensors(GoldenDir() / "generation/sampling.safetensors");
  const at::Tensor logits = tensors.Get("logits");
  const at::Tensor tokens = tensors.Get("tokens").to(at::kInt).contiguous();
  const Ids eos = golden["eos"].get<Ids>();
  const auto width = static_cast<size_t>(logits.size(1));
  const auto length = static_cast<size_t>(tokens.size(1));
  const size_t prompt_length = golden["prompt_length"];
  ASSERT_EQ(golden["cases"].size(), 16u);
  for (size_t i = 0; i < golden["cases"].size(); ++i) {
    const SamplingOptions options = OptionsOf(golden["cases"][i]);
    const at::Tensor expected = tensors.Get(fmt::format("probabilities.{}", i));
    for (int64_t row = 0; row < logits.size(0); ++row) {
      const float* given = logits.const_data_ptr<float>() + row * logits.size(1);
      std::vector<float> changed(given, given + width);
      const std::span<const int32_t> so_far(tokens.const_data_ptr<int32_t>() + row * tokens.size(1),
                                            length);
      const TokensSoFar split{so_far.first(prompt_length), so_far.subspan(prompt_length)};
      PenaliseLogits(changed, options, split, eos);
      NarrowLogits(changed, options);
      for (size_t token = 0; token < width; ++token) {
        const double ours = std::exp(LogProbability(changed, static_cast<int32_t>(token)));
        const double theirs = expected[row][static_cast<int64_t>(token)].item<float>();
        ASSERT_NEAR(ours, theirs, 1e-6) << "case " << i << ", row " << row << ", token " << token;
        ASSERT_EQ(ours == 0.0, theirs == 0.0)
            << "case " << i << ", row " << row << ", token " << token;
      }
    }
  }
}

}  // namespace
}  // namespace sft::engine
