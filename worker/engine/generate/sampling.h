#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sft::engine {

// How the next token is chosen, as transformers' generation config has it; the defaults leave the
// model's probabilities as they are.
struct SamplingOptions {
  double temperature = 0.0;         // 0: always the likeliest token, whatever the three below say
  int64_t top_k = 0;                // the k likeliest, and what is as likely as the last; 0: all
  double top_p = 1.0;               // the likeliest that make up this much together
  double min_p = 0.0;               // those at least this much as likely as the likeliest
  double repetition_penalty = 1.0;  // of tokens in prompt and answer; > 1 makes them less likely
  double frequency_penalty = 0.0;   // subtracted for each time that the answer has a token,
  double presence_penalty = 0.0;    // and once for each token that it has
  int64_t no_repeat_ngram = 0;      // so many tokens never stand twice in a row; 0: they may
  int64_t min_new_tokens = 0;       // no stop token before
  uint64_t seed = 0;
};

// Throws UserError, which names the option, where one is out of its range.
void CheckSampling(const SamplingOptions& options);

// The tokens of a request so far.
struct TokensSoFar {
  std::span<const int32_t> prompt, answer;
};

// Changes logits of one token in place: penalties, then what may not come (minus infinity), in the
// order of transformers.
void PenaliseLogits(std::span<float> logits, const SamplingOptions& options,
                    const TokensSoFar& tokens, std::span<const int32_t> stop_ids);
// Then temperature, top-k, top-p and min-p, in that order, for a temperature above 0.
void NarrowLogits(std::span<float> logits, const SamplingOptions& options);

// The logarithms of the probabilities that logits give each token, penalised as logits are: what a
// search with beams adds up. Throws as NextToken does.
void PenalisedLogProbabilities(std::span<float> logits, const SamplingOptions& options,
                               const TokensSoFar& tokens, std::span<const int32_t> stop_ids);

// The token of the largest logit, of the least id where there are several.
int32_t LikeliestToken(std::span<const float> logits);

// A number in [0, 1) for token `index` of an answer: Philox 4x32-10 with the seed as its key and
// the index as its counter (its first 53 bits), so that it depends on nothing else. It is not
// torch's generator, which draws for a whole batch from one stream.
double UniformOf(uint64_t seed, uint64_t index);
// The first token, by id, at which the sum of the probabilities passes `uniform` of the whole.
int32_t DrawToken(std::span<const float> logits, double uniform);

// All of the above: the next token. Overwrites `logits`. Throws UserError where one of them is NaN
// or infinite, so that sampling has no meaning, and where no token may come.
int32_t NextToken(std::span<float> logits, const SamplingOptions& options,
                  const TokensSoFar& tokens, std::span<const int32_t> stop_ids);

// The natural logarithm of the probability that `logits` give a token.
double LogProbability(std::span<const float> logits, int32_t token);

// A token and that logarithm.
struct TokenLikelihood {
  int32_t token = 0;
  double log_probability = 0;
};
// The `count` likeliest tokens, the likeliest first, of equal ones the least id.
std::vector<TokenLikelihood> LikeliestTokens(std::span<const float> logits, int64_t count);

}  // namespace sft::engine
