#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/data/prompt_row.h"
#include "worker/engine/data/chat_tokenizer.h"

namespace sft::rank {

// The rows of a file for `sft-rank generate --prompts`, blank lines left out. A line that starts
// with a brace is a row (data::ReadPromptRow); any other is what a user says. Throws UserError,
// which names file and line.
std::vector<data::PromptRow> ReadPromptFile(const std::string& path);

// "prompts.jsonl:7", of a row of that file.
std::string PlaceOf(const std::string& file, const data::PromptRow& row);

// The tokens that a row gives the model. Throws UserError.
std::vector<int32_t> EncodeRow(const engine::ChatTokenizer& tokenizer, const data::PromptRow& row);

}  // namespace sft::rank
