#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/generate/batch_generator.h"
#include "worker/rank/serve_question.h"

namespace sft::rank {

// One answer of a process that serves, as it is told: lines of JSON, each with what is new of its
// text, and of its tokens where those are asked for. Thread-compatible.
class ServeAnswer {
 public:
  // Borrows both. `prompt`, `sample`: which of the question's this is; `tokens`: of that prompt.
  ServeAnswer(const ServeQuestion& question, const engine::ChatTokenizer& tokenizer, size_t prompt,
              int sample, std::vector<int32_t> tokens);

  // What the generator is asked. `most_new_tokens`: that there is room for beside the prompt. Its
  // callbacks keep a pointer to this answer.
  engine::GenerationRequest Request(int64_t most_new_tokens);

  // The part of the answer so far that will not change, as far as it was not told; mostly nothing.
  std::string Tell();
  // The rest, and how it ended.
  std::string Finish(const engine::GenerationAnswer& made);

 private:
  struct Scored {
    engine::ChosenToken chosen;
    bool known = true;  // false: nothing is known of how likely it was
  };
  // Lines with these bytes of text, and the tokens that were not told.
  std::string Lines(std::string_view text);
  std::string Line(nlohmann::ordered_json members) const;
  nlohmann::ordered_json TokensJson(size_t first, size_t last) const;
  void AddEcho(const engine::GenerationAnswer& made);
  // What a token adds to the text of those before it.
  std::string TextOf(std::span<const int32_t> before, int32_t token) const;

  const ServeQuestion& question_;
  const engine::ChatTokenizer& tokenizer_;
  const size_t prompt_number_;
  const int sample_;
  std::vector<int32_t> prompt_, tokens_;
  size_t told_bytes_ = 0;       // of the answer's text
  std::vector<Scored> scored_;  // of prompt and answer, where they are asked for
  size_t told_scores_ = 0;
  size_t echoed_ = 0;  // of scored_: the prompt's
};

// What is told of a question that cannot be answered.
std::string RefusalLine(const std::string& error);
// The answers to questions about the tokenizer, whole. Throws UserError. `max_tokens`: of a
// conversation.
std::string TokenizerLines(const ServeQuestion& question, const engine::ChatTokenizer& tokenizer,
                           int64_t max_tokens);

}  // namespace sft::rank
