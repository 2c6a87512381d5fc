#include "worker/engine/data/question.h"

#include "common/base/utf8.h"

namespace sft::engine {

std::optional<Question> QuestionOf(const Document& document, const ChatTokenizer& tokenizer) {
  size_t end = document.loss.size();
  while (end > 0 && document.loss[end - 1] == 0) --end;
  size_t begin = end;
  while (begin > 0 && document.loss[begin - 1] != 0) --begin;
  // The first token is never predicted: an answer that begins there has no question.
  if (begin == end || begin <= 1) return std::nullopt;
  return Question{.prompt = document.tokens.first(begin),
                  .reference =
                      ToUtf8(tokenizer.DecodeAnswer(document.tokens.subspan(begin, end - begin))),
                  .line = document.line};
}

}  // namespace sft::engine
