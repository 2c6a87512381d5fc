#pragma once

#include <cstdint>
#include <map>
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

  // The most that is kept for a request that does not stream.
  static constexpr size_t kMostBytes = 32 << 20;

  // Takes a piece. INTERNAL where an answer could not go on, INVALID_ARGUMENT beyond kMostBytes.
  // For a request that streams, returns the data of the events that tell of it, JSON each; mostly
  // one.
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
    std::map<std::string, std::string> tokens;  // lists of the log-probabilities: their elements
    int64_t characters = 0;                     // of the tokens' texts
    bool begun = false;
    bool has_tokens = false;
  };

  Json Head(const char* object) const;
  Json Usage() const;
  // The tokens of a piece; null where they are not asked for.
  Json Tokens(const v1::CompleteResponse& piece, Choice& choice) const;
  Json ChatTokens(const v1::CompleteResponse& piece) const;
  Json TextTokens(const v1::CompleteResponse& piece, Choice& choice) const;
  // Whether a token's text is a part of the answer's: each token is asked about once.
  bool IsInText(const v1::CompleteResponse& piece, const v1::TokenScore& token,
                Choice& choice) const;
  // Keeps a piece of an answer that does not stream.
  absl::Status Keep(const v1::CompleteResponse& piece, const Json& tokens, Choice& choice);
  std::string Event(int32_t index, Choice& choice, const std::string& text, const Json& tokens,
                    const std::string& finish_reason) const;
  std::string ChoiceText(int32_t index, const Choice& choice) const;
  std::string TokensText(const Choice& choice) const;

  const Asked& asked_;
  const std::string id_, model_;
  const int64_t created_s_;
  std::vector<Choice> choices_;
  int64_t prompt_tokens_ = 0, answer_tokens_ = 0;
  size_t bytes_ = 0;  // that are kept
};

}  // namespace sft::server::openai
