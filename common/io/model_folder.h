#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace sft::io {

// Files of a Hugging Face model folder, beside config.json and the weights, that are read where
// they exist and copied to a model made from it. No other file is looked at.
inline constexpr std::array<std::string_view, 12> kModelCompanions = {"generation_config.json",
                                                                      "tokenizer.json",
                                                                      "tokenizer_config.json",
                                                                      "special_tokens_map.json",
                                                                      "added_tokens.json",
                                                                      "tekken.json",
                                                                      "tokenizer.model",
                                                                      "tiktoken.model",
                                                                      "vocab.json",
                                                                      "merges.txt",
                                                                      "chat_template.jinja",
                                                                      "chat_template.json"};

// Whether a tokenizer or chat template may be read from the file of this name: config.json says
// which class it is.
inline bool IsTextFile(std::string_view name) {
  return name == "config.json" ||
         std::ranges::find(kModelCompanions, name) != kModelCompanions.end();
}

// What a model's makers say of it, its licence among that; read for the cards of what is made of
// it.
inline constexpr std::string_view kModelCard = "README.md";

// The files that a tokenizer is read from, or made of.
struct TokenizerSource {
  std::string_view vocabulary;
  std::string_view merges;  // empty: there is no second file
};
// The first whose files a folder has counts.
inline constexpr std::array<TokenizerSource, 5> kTokenizerSources = {
    {{"tokenizer.json", ""},
     {"tekken.json", ""},
     {"tokenizer.model", ""},
     {"tiktoken.model", ""},
     {"vocab.json", "merges.txt"}}};

// What a folder without any of them lacks.
inline constexpr std::string_view kNoTokenizer =
    "tokenizer.json is missing, and so are tekken.json, tokenizer.model, tiktoken.model, and "
    "vocab.json with merges.txt, of which it could be made";

// The first source whose files exist, as `exists` says of a name in the folder; null: none.
template <typename Exists>
const TokenizerSource* FindTokenizer(const Exists& exists) {
  for (const TokenizerSource& source : kTokenizerSources) {
    if (exists(source.vocabulary) && (source.merges.empty() || exists(source.merges))) {
      return &source;
    }
  }
  return nullptr;
}

}  // namespace sft::io
