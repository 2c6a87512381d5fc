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

}  // namespace sft::engine
