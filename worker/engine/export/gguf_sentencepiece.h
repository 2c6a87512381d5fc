#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sft::engine {

// A SentencePiece vocabulary as llama.cpp's tokenizer "llama" has it.
struct SentencePieces {
  // By id: the order in which neighbours become one token, the highest first; of tokens that
  // nothing becomes, a low number.
  std::vector<float> scores;
  bool space_before = false;  // a space goes before each text
};

// True for a tokenizer.json whose texts have "▁" for spaces: BPE of characters that falls back to
// bytes.
bool IsSentencePiece(const nlohmann::json& tokenizer);

// Reads one with `vocab` ids. Throws UserError where llama.cpp would cut or join texts otherwise:
// it joins any neighbours whose text is a token, so every such pair has to be among the merges, and
// all pairs of one token in a row.
SentencePieces ReadSentencePieces(const nlohmann::json& tokenizer, int64_t vocab);

// The same for llama.cpp's tokenizer "gemma4", which merges by the list: throws UserError where it
// would still cut texts otherwise, since it makes runs of line feeds a text of their own.
void CheckGemma4Pieces(const nlohmann::json& tokenizer);

}  // namespace sft::engine
