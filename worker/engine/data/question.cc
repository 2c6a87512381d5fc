#include "worker/engine/data/question.h"

#include <vector>

#include "common/base/utf8.h"

namespace sft::engine {

std::optional<Question> QuestionOf(const Document& document, const ChatTokenizer& tokenizer) {
  size_t end = document.loss.size();
  while (end > 0 && document.loss[end - 1] == 0) --end;
  size_t begin = end;
  while (begin > 0 && document.loss[begin - 1] != 0) --begin;
  // The first token is never predicted: an answer that begins there has no question.
  if (begin == end || begin <= 1) return std::nullopt;
  return Question{
      .prompt = document.tokens.first(begin),
      .reference = ToUtf8(tokenizer.DecodeAnswer(document.tokens.subspan(begin, end - begin))),
      .line = document.line};
}

LearntText LearntTextOf(const Document& document, const ChatTokenizer& tokenizer) {
  std::vector<int32_t> learnt;
  for (size_t i = 1; i < document.tokens.size(); ++i) {
    if (document.loss[i] != 0) learnt.push_back(document.tokens[i]);
  }
  return {static_cast<int64_t>(learnt.size()),
          static_cast<int64_t>(tokenizer.DecodeText(learnt).size())};
}

int64_t LearntBytes(const Dataset& dataset, const ChatTokenizer& tokenizer) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    bytes += LearntTextOf(dataset.Get(i), tokenizer).bytes;
  }
  return bytes;
}

}  // namespace sft::engine
