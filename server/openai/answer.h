#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/openai/request.h"

namespace sft::server::openai {

// The answer to one request to /v1/chat/completions or /v1/completions, made of the pieces that the
// job's process sends. Not thread-safe.
class Answer {
 public:
  // Borrows `asked`. `model`: as the answer names it.
  Answer(const Asked& asked, std::string id, std::string model, int64_t created_s);

  // Takes a piece. INTERNAL where an answer could not go on. For a request that streams, returns
  // the data of the events that tell of it, JSON each; mostly one.
  absl::StatusOr<std::vector<std::string>> Take(const v1::CompleteResponse& piece);

  // Where it streams: the events behind the last piece.
  std::vector<std::string> LastEvents() const;
  // Where it does not: all of it.
  std::string Whole() const;

 private:
  using Json = nlohmann::ordered_json;
  // One of the choices so far.
  struct Choice {
    std::string text;
    std::string finish_reason;
    Json tokens;             // of the log-probabilities, in the form of their kind
    int64_t characters = 0;  // of the tokens' texts
    bool begun = false;
  };

  Json Head(const char* object) const;
  Json Usage() const;
  // Adds the tokens of a piece; null where it has none.
  Json AddTokens(const v1::CompleteResponse& piece, Choice& choice) const;
  Json ChatTokens(const v1::CompleteResponse& piece) const;
  Json TextTokens(const v1::CompleteResponse& piece, Choice& choice) const;
  static void Append(Json& tokens, const Json& more);
  std::string Event(int32_t index, Choice& choice, const std::string& text, const Json& tokens,
                    const std::string& finish_reason) const;
  Json ChoiceJson(int32_t index, const Choice& choice) const;

  const Asked& asked_;
  const std::string id_, model_;
  const int64_t created_s_;
  std::vector<Choice> choices_;
  int64_t prompt_tokens_ = 0, answer_tokens_ = 0;
};

}  // namespace sft::server::openai
