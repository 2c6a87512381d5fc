#include "worker/engine/generate/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "worker/engine/base/error.h"

namespace sft::engine {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

void Require(bool good, const char* option, double value, const char* range) {
  if (good) return;
  throw UserError(fmt::format("{} is {}, must be {}", option, value, range), "bad_sampling",
                  fmt::format("give a {} that is {}", option, range));
}

void Never(std::span<float> logits, int32_t token) {
  if (token >= 0 && static_cast<size_t>(token) < logits.size()) logits[token] = kNever;
}

void PenaliseRepetition(std::span<float> logits, double penalty, const TokensSoFar& tokens) {
  const auto factor = static_cast<float>(penalty);
  std::set<int32_t> seen(tokens.prompt.begin(), tokens.prompt.end());
  seen.insert(tokens.answer.begin(), tokens.answer.end());
  for (const int32_t token : seen) {
    float& logit = logits[token];
    logit = logit < 0.0f ? logit * factor : logit / factor;
  }
}

void PenaliseAnswered(std::span<float> logits, const SamplingOptions& options,
                      std::span<const int32_t> answer) {
  std::map<int32_t, int64_t> counts;
  for (const int32_t token : answer) ++counts[token];
  for (const auto& [token, count] : counts) {
    logits[token] -= static_cast<float>(options.frequency_penalty * static_cast<double>(count) +
                                        options.presence_penalty);
  }
}

// Bans each token that would end an n-gram which stands in the tokens already.
void BanRepeatedNgrams(std::span<float> logits, int64_t size, const TokensSoFar& tokens) {
  std::vector<int32_t> all(tokens.prompt.begin(), tokens.prompt.end());
  all.insert(all.end(), tokens.answer.begin(), tokens.answer.end());
  const auto before = static_cast<std::ptrdiff_t>(size - 1);
  const auto count = static_cast<std::ptrdiff_t>(all.size());
  const auto last = all.end() - std::min(before, count);
  for (std::ptrdiff_t first = 0; first + before < count; ++first) {
    if (std::equal(last, all.end(), all.begin() + first, all.begin() + first + before)) {
      Never(logits, all[static_cast<size_t>(first + before)]);
    }
  }
}

// exp(logit - the largest), and their sum.
std::vector<float> Weights(std::span<const float> logits, double& total) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  std::vector<float> weights(logits.size());
  total = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::exp(logits[i] - largest);
    total += static_cast<double>(weights[i]);
  }
  return weights;
}

void KeepTopK(std::span<float> logits, int64_t k) {
  const size_t kept = std::min(static_cast<size_t>(k), logits.size());
  std::vector<float> sorted(logits.begin(), logits.end());
  const auto last = sorted.begin() + static_cast<std::ptrdiff_t>(kept) - 1;
  std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
  for (float& logit : logits) {
    if (logit < *last) logit = kNever;
  }
}

void KeepTopP(std::span<float> logits, double p) {
  double total = 0.0;
  const std::vector<float> weights = Weights(logits, total);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] < logits[b]; });
  order.pop_back();  // the likeliest stays
  const auto tail = static_cast<float>(1.0 - p);
  double sum = 0.0;
  for (const int32_t token : order) {
    sum += static_cast<double>(weights[token]) / total;
    if (static_cast<float>(sum) > tail) return;
    logits[token] = kNever;
  }
}

void KeepMinP(std::span<float> logits, double p) {
  double total = 0.0;
  const std::vector<float> weights = Weights(logits, total);  // the likeliest has 1
  for (size_t i = 0; i < logits.size(); ++i) {
    if (weights[i] < static_cast<float>(p)) logits[i] = kNever;
  }
}

std::array<uint32_t, 4> Philox(uint64_t key, uint64_t counter) {
  constexpr uint64_t kFirst = 0xD2511F53, kSecond = 0xCD9E8D57;
  constexpr uint32_t kFirstStep = 0x9E3779B9, kSecondStep = 0xBB67AE85;
  std::array<uint32_t, 4> x = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                               0, 0};
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = kFirst * x[0], b = kSecond * x[2];
    x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += kFirstStep;
    k1 += kSecondStep;
  }
  return x;
}

void Refuse(const TokensSoFar& tokens, const char* why, const char* advice) {
  throw UserError(
      fmt::format("token {} of the answer cannot be chosen: {}", tokens.answer.size() + 1, why),
      "bad_logits", advice);
}

void RequireNumbers(std::span<const float> logits, const TokensSoFar& tokens) {
  if (std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); })) return;
  Refuse(tokens, "the model's logits are NaN or infinite", "look for NaN in the weights");
}

// Some token may come.
void RequireChoice(std::span<const float> logits, const TokensSoFar& tokens) {
  if (std::isfinite(logits[LikeliestToken(logits)])) return;
  Refuse(tokens, "none is allowed", "relax no_repeat_ngram or min_new_tokens");
}

}  // namespace

void CheckSampling(const SamplingOptions& o) {
  const auto finite = [](double x) { return std::isfinite(x); };
  Require(finite(o.temperature) && o.temperature >= 0.0, "temperature", o.temperature,
          "0 (always the likeliest token) or more");
  Require(o.top_k >= 0, "top_k", static_cast<double>(o.top_k), "0 (all tokens) or more");
  Require(o.top_p > 0.0 && o.top_p <= 1.0, "top_p", o.top_p, "above 0 and at most 1");
  Require(o.min_p >= 0.0 && o.min_p <= 1.0, "min_p", o.min_p, "between 0 and 1");
  Require(std::isnormal(static_cast<float>(o.repetition_penalty)) && o.repetition_penalty > 0.0,
          "repetition_penalty", o.repetition_penalty, "above 0, in the range of fp32");
  Require(std::abs(o.frequency_penalty) <= 2.0, "frequency_penalty", o.frequency_penalty,
          "between -2 and 2");
  Require(std::abs(o.presence_penalty) <= 2.0, "presence_penalty", o.presence_penalty,
          "between -2 and 2");
  Require(o.no_repeat_ngram >= 0, "no_repeat_ngram", static_cast<double>(o.no_repeat_ngram),
          "0 (off) or more");
  Require(o.min_new_tokens >= 0, "min_new_tokens", static_cast<double>(o.min_new_tokens),
          "0 or more");
}

void PenaliseLogits(std::span<float> logits, const SamplingOptions& options,
                    const TokensSoFar& tokens, std::span<const int32_t> stop_ids) {
  if (options.repetition_penalty != 1.0) {
    PenaliseRepetition(logits, options.repetition_penalty, tokens);
  }
  if (options.frequency_penalty != 0.0 || options.presence_penalty != 0.0) {
    PenaliseAnswered(logits, options, tokens.answer);
  }
  if (options.no_repeat_ngram > 0) BanRepeatedNgrams(logits, options.no_repeat_ngram, tokens);
  if (static_cast<int64_t>(tokens.answer.size()) < options.min_new_tokens) {
    for (const int32_t token : stop_ids) Never(logits, token);
  }
}

void NarrowLogits(std::span<float> logits, const SamplingOptions& options) {
  const auto temperature = static_cast<float>(options.temperature);
  // So near to 0 that a quotient would be infinite: only how far they are apart counts.
  const float largest = *std::max_element(logits.begin(), logits.end());
  const float origin = std::isfinite(largest / temperature) ? 0.0f : largest;
  for (float& logit : logits) logit = (logit - origin) / temperature;
  if (options.top_k > 0) KeepTopK(logits, options.top_k);
  if (options.top_p < 1.0) KeepTopP(logits, options.top_p);
  if (options.min_p > 0.0) KeepMinP(logits, options.min_p);
}

int32_t LikeliestToken(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double UniformOf(uint64_t seed, uint64_t index) {
  const std::array<uint32_t, 4> x = Philox(seed, index);
  const uint64_t bits = (static_cast<uint64_t>(x[0]) << 32 | x[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

int32_t DrawToken(std::span<const float> logits, double uniform) {
  double total = 0.0;
  const std::vector<float> weights = Weights(logits, total);
  const double aim = uniform * total;
  double sum = 0.0;
  int32_t last = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0.0f) continue;
    last = static_cast<int32_t>(i);
    sum += static_cast<double>(weights[i]);
    if (sum > aim) break;
  }
  return last;
}

void PenalisedLogProbabilities(std::span<float> logits, const SamplingOptions& options,
                               const TokensSoFar& tokens, std::span<const int32_t> stop_ids) {
  RequireNumbers(logits, tokens);
  double total = 0.0;
  const float largest = *std::max_element(logits.begin(), logits.end());
  (void)Weights(logits, total);
  const auto whole = static_cast<float>(std::log(total));
  for (float& logit : logits) logit = logit - largest - whole;
  PenaliseLogits(logits, options, tokens, stop_ids);
  RequireChoice(logits, tokens);
}

int32_t NextToken(std::span<float> logits, const SamplingOptions& options,
                  const TokensSoFar& tokens, std::span<const int32_t> stop_ids) {
  RequireNumbers(logits, tokens);
  PenaliseLogits(logits, options, tokens, stop_ids);
  RequireChoice(logits, tokens);
  // What fp32 has no normal number for is as good as 0.
  if (static_cast<float>(options.temperature) < std::numeric_limits<float>::min()) {
    return LikeliestToken(logits);
  }
  NarrowLogits(logits, options);
  return DrawToken(logits, UniformOf(options.seed, tokens.answer.size()));
}

double LogProbability(std::span<const float> logits, int32_t token) {
  double total = 0.0;
  Weights(logits, total);
  const float largest = *std::max_element(logits.begin(), logits.end());
  return static_cast<double>(logits[token]) - static_cast<double>(largest) - std::log(total);
}

std::vector<TokenLikelihood> LikeliestTokens(std::span<const float> logits, int64_t count) {
  const size_t kept = std::min(static_cast<size_t>(count), logits.size());
  if (kept == 0) return {};
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
      [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  double total = 0.0;
  Weights(logits, total);
  const auto largest = static_cast<double>(logits[order[0]]);
  std::vector<TokenLikelihood> likeliest;
  for (size_t i = 0; i < kept; ++i) {
    const auto logit = static_cast<double>(logits[order[i]]);
    likeliest.push_back({order[i], logit - largest - std::log(total)});
  }
  return likeliest;
}

}  // namespace sft::engine
