#include "worker/engine/generate/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// The first words of Philox 4x32-10 for a counter of zeros with a key of zeros, as its authors'
// known answers have them: 6627e8d5 e169c58d.
TEST(SamplingTest, TheGeneratorIsPhilox) {
  EXPECT_EQ(UniformOf(0, 0), static_cast<double>(0x6627e8d5e169c58dULL >> 11) * 0x1p-53);
  EXPECT_NE(UniformOf(0, 1), UniformOf(0, 0));
  EXPECT_NE(UniformOf(uint64_t{1} << 40, 0), UniformOf(0, 0));
}

TEST(SamplingTest, DrawsAreSpreadAsTheProbabilities) {
  const std::vector<float> logits = {std::log(0.5f), kNever, std::log(0.2f), std::log(0.3f)};
  std::vector<int> counts(logits.size());
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) ++counts[DrawToken(logits, UniformOf(3, i))];
  EXPECT_EQ(counts[1], 0);
  EXPECT_NEAR(counts[0], 0.5 * kDraws, 300);
  EXPECT_NEAR(counts[2], 0.2 * kDraws, 300);
  EXPECT_NEAR(counts[3], 0.3 * kDraws, 300);
}

TEST(SamplingTest, TheLikeliestComeInOrderWithTheirLogarithms) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, kNever};
  const std::vector<TokenLikelihood> likeliest = LikeliestTokens(logits, 3);
  ASSERT_EQ(likeliest.size(), 3u);
  EXPECT_EQ(likeliest[0].token, 1) << "of equal ones the least id";
  EXPECT_EQ(likeliest[1].token, 3);
  EXPECT_EQ(likeliest[2].token, 2);
  for (const TokenLikelihood& each : likeliest) {
    EXPECT_EQ(each.log_probability, LogProbability(logits, each.token));
  }
  EXPECT_TRUE(LikeliestTokens(logits, 0).empty());
  EXPECT_EQ(LikeliestTokens(logits, 100).size(), logits.size());
}

TEST(SamplingTest, TheEndsOfTheRangeDrawTokensThatMayCome) {
  const std::vector<float> logits = {kNever, 0.0f, 0.0f, kNever};
  EXPECT_EQ(DrawToken(logits, 0.0), 1);
  EXPECT_EQ(DrawToken(logits, std::nextafter(1.0, 0.0)), 2);
}

TEST(SamplingTest, OfEqualLogitsTheLeastIdIsLikeliest) {
  EXPECT_EQ(LikeliestToken(std::vector<float>{1.0f, 3.0f, 3.0f}), 1);
}

TEST(SamplingTest, PenaltiesOfTheAnswerCountItsTokensAlone) {
  std::vector<float> logits = {1.0f, 1.0f, 1.0f};
  const std::vector<int32_t> prompt = {0, 0}, answer = {1, 1, 2};
  const SamplingOptions options{.frequency_penalty = 0.5, .presence_penalty = 0.25};
  PenaliseLogits(logits, options, {prompt, answer}, {});
  EXPECT_EQ(logits, (std::vector<float>{1.0f, -0.25f, 0.25f}));
}

TEST(SamplingTest, ATemperatureNearZeroChoosesTheLikeliest) {
  const std::vector<int32_t> prompt = {0}, answer;
  for (const double temperature : {5e-324, 1e-300, 1e-45, 1e-38, 1.2e-38, 1e-36, 1e-20}) {
    for (const float shift : {0.0f, -200.0f}) {
      for (uint64_t seed = 0; seed < 8; ++seed) {
        std::vector<float> logits = {90.0f + shift, 100.0f + shift, 99.0f + shift, shift};
        const SamplingOptions options{.temperature = temperature, .top_p = 0.9, .seed = seed};
        EXPECT_EQ(NextToken(logits, options, {prompt, answer}, {}), 1) << temperature;
      }
    }
  }
}

TEST(SamplingTest, APenaltyThatFp32DoesNotHaveIsRefused) {
  for (const double penalty : {0.0, -1.0, 1e-300, 1e-40, 1e300}) {
    EXPECT_THROW(CheckSampling({.repetition_penalty = penalty}), UserError) << penalty;
  }
  EXPECT_NO_THROW(CheckSampling({.repetition_penalty = 1.5}));
}

TEST(SamplingTest, LogitsWithoutAFiniteOneAreRefused) {
  const std::vector<int32_t> prompt = {0, 1}, answer;
  std::vector<float> banned = {1.0f, 2.0f};
  EXPECT_THROW(NextToken(banned, {.no_repeat_ngram = 1}, {prompt, answer}, {}), UserError);
}

TEST(SamplingTest, LogitsThatAreNoNumbersAreRefusedWhateverTheSampling) {
  const std::vector<int32_t> prompt = {0, 1}, answer;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, infinite, -infinite}) {
    for (const SamplingOptions& options : {SamplingOptions{},
                                           {.temperature = 1.0, .top_k = 2},
                                           {.temperature = 1.0, .top_p = 0.5}}) {
      std::vector<float> logits = {1.0f, bad, 2.0f};
      EXPECT_THROW(NextToken(logits, options, {prompt, answer}, {}), UserError) << bad;
    }
  }
}

}  // namespace
}  // namespace sft::engine
