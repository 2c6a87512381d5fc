#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/data/prompt_row.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/rank/row_answerer.h"

namespace sft::rank {

// What somebody asks a process that serves, as its line of JSON says it. A prompt is
// {"messages": [...]}, {"prompt": "text"} or {"tokens": [...]}.
//
// One member says what is asked: "messages" or "prompt", an answer to one prompt; "prompts", a list
// of them, with "samples" answers to each, "echo" and "logprobs"; "tokenize", the tokens of a text;
// "detokenize", the text of tokens; "tokenizer", what is to be known of it.
struct ServeQuestion {
  enum class Kind { kAnswer, kTokenize, kDetokenize, kTokenizer };
  struct Prompt {
    data::PromptRow row;          // where there are no tokens
    std::vector<int32_t> tokens;  // that are continued
    bool is_row = true;
    bool controls = false;  // control tokens in a text are control tokens
  };

  Kind kind = Kind::kAnswer;
  bool listed = false;  // "prompts": the answers' pieces are numbered
  std::vector<Prompt> prompts;
  int samples = 1;
  bool base = false;  // without the adapter
  int64_t max_new_tokens = 0;
  engine::SamplingOptions sampling;
  std::vector<std::string> stop;
  std::optional<int> logprobs;  // of each token, with so many likeliest ones at its place
  bool echo = false;            // the prompt comes before the answer

  std::string text;                  // of kTokenize
  bool with_special_tokens = false;  // of kTokenize
  std::vector<int32_t> tokens;       // of kDetokenize
};

// `defaults`: what the job's file says, where the question leaves something open. Throws UserError.
ServeQuestion ReadQuestion(const std::string& line, const AnswerOptions& defaults);

// The tokens that a prompt gives the model. Throws UserError.
std::vector<int32_t> TokensOf(const ServeQuestion::Prompt& prompt,
                              const engine::ChatTokenizer& tokenizer);

// Tokens of a text that is continued, whose control tokens are control tokens. `begins`: it starts
// as the model's own tokenizer starts a text.
std::vector<int32_t> ControlledTokens(const std::string& text, bool begins,
                                      const engine::ChatTokenizer& tokenizer);

}  // namespace sft::rank
