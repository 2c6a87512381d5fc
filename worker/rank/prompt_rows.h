#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "worker/engine/data/chat_tokenizer.h"

namespace sft::rank {

// A prompt of a file: what is asked, and the members that its answer is written beside.
struct PromptRow {
  int64_t line = 0;                           // in its file, from 1
  nlohmann::ordered_json members;             // {"prompt": ...} of a line of plain text
  std::vector<engine::ChatMessage> messages;  // empty: `text` is continued as it is
  std::string text;
};

// The rows of a file, blank lines left out. A line that starts with a brace is JSON: "messages", a
// conversation whose last message is left out where it is an answer; or "prompt", messages or text
// that is continued without a template, as training has them. Any other line is what a user says.
// Throws UserError, which names file and line.
std::vector<PromptRow> ReadPromptRows(const std::string& path);
PromptRow UserPrompt(const std::string& text);

// The tokens that a row gives the model.
std::vector<int32_t> EncodeRow(const engine::ChatTokenizer& tokenizer, const PromptRow& row);

}  // namespace sft::rank
