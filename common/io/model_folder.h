#pragma once

#include <array>
#include <string_view>

namespace sft::io {

// Files of a Hugging Face model folder, beside config.json and the weights, that are read where
// they exist and copied to a model made from it. No other file is looked at.
inline constexpr std::array<std::string_view, 10> kModelCompanions = {"generation_config.json",
                                                                      "tokenizer.json",
                                                                      "tokenizer_config.json",
                                                                      "special_tokens_map.json",
                                                                      "added_tokens.json",
                                                                      "tokenizer.model",
                                                                      "vocab.json",
                                                                      "merges.txt",
                                                                      "chat_template.jinja",
                                                                      "chat_template.json"};

}  // namespace sft::io
