#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::data {

// A turn of the conversation that a prompt is.
struct PromptMessage {
  std::string role, content;
};

// A prompt of a file: what is asked, and the members that its answer is written beside.
struct PromptRow {
  int64_t line = 0;                     // in its file, from 1
  nlohmann::ordered_json members;       // {"prompt": ...} of a line of plain text
  std::vector<PromptMessage> messages;  // empty: `text` is continued as it is
  std::string text;

  // What is asked last, for people.
  const std::string& Asked() const { return messages.empty() ? text : messages.back().content; }
};

// A row in JSON: "messages", a conversation whose last message is left out where it is an answer;
// or "prompt", messages or text that is continued without a template, as training has them.
// INVALID_ARGUMENT says what is wrong with the row.
absl::StatusOr<PromptRow> ReadPromptRow(std::string_view row);

// What a user says, for the chat template.
PromptRow UserPrompt(const std::string& text);

// The first `most` rows of a job's file of prompts (0: all), which is as files of training rows
// (ReadRows). `name` is what its owner calls it. INVALID_ARGUMENT names the line of a bad row.
absl::StatusOr<std::vector<PromptRow>> ReadPromptRows(const std::string& path,
                                                      std::string_view name, int64_t most);
// The same without keeping the rows: how many there are.
absl::StatusOr<int64_t> CountPromptRows(const std::string& path, std::string_view name,
                                        int64_t most);

}  // namespace sft::data
