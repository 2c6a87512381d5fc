#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/dataset.h"

namespace sft::engine {

// A row of training or validation as a question: what stands before its last answer, and that.
struct Question {
  std::span<const int32_t> prompt;  // as the row was encoded: what training sees before the answer
  std::string reference;            // the answer's text, as generated answers are decoded
  int64_t line = 0;
};

// Nothing where the row has no answer, or nothing stands before it. Reads the document in place.
std::optional<Question> QuestionOf(const Document& document, const ChatTokenizer& tokenizer);

// The tokens of a row that carry loss, and the bytes of their text; special tokens have none.
struct LearntText {
  int64_t tokens = 0, bytes = 0;
};
LearntText LearntTextOf(const Document& document, const ChatTokenizer& tokenizer);
// The bytes of all rows.
int64_t LearntBytes(const Dataset& dataset, const ChatTokenizer& tokenizer);

}  // namespace sft::engine
