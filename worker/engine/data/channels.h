#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/engine/data/tokenizer.h"

namespace sft::engine {

// Answers of models that name what they write: gpt-oss (OpenAI's Harmony format) thinks in the
// channel "analysis", calls tools in "commentary" and answers in "final". A part begins with
// "<|channel|>", its channel and "<|message|>", and ends with "<|end|>" or the like;
// "<|start|>assistant" may stand before it. Immutable; may be used from any thread at the same
// time.
class AnswerChannels {
 public:
  // Nullopt for a tokenizer without such tokens.
  static std::optional<AnswerChannels> Of(const Tokenizer& tokenizer);

  // What tokens of an answer say, without what names and ends its parts.
  struct Parts {
    std::vector<int32_t> answer;    // "final", and what is in no channel
    std::vector<int32_t> thoughts;  // all other channels
  };
  // `answer` only grows with `ids`.
  Parts Split(std::span<const int32_t> ids, const Tokenizer& tokenizer) const;

 private:
  int32_t start_ = 0, channel_ = 0, message_ = 0;
  std::vector<int32_t> ends_;
};

}  // namespace sft::engine
