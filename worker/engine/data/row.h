#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/data/row_form.h"
#include "worker/engine/data/dataset.h"

namespace sft::engine {

// Why one row cannot be used; caught by PrepareDataset, which counts or lists it.
class RowError : public std::runtime_error {
 public:
  RowError(RowProblem problem, const std::string& reason)
      : std::runtime_error(reason), problem_(problem) {}
  RowProblem problem() const { return problem_; }

 private:
  RowProblem problem_;
};

// {"messages": [...], "tools": [...]?, "chat_template_kwargs": {...}?}, or the same conversation
// cut in two as {"prompt": [...], "completion": [...]}. Messages are as the template will see them:
// content parts joined into a string, `thinking` also as `reasoning_content` and the other way
// round, tool call arguments as objects.
struct ConversationRow {
  nlohmann::ordered_json messages;
  nlohmann::ordered_json tools;      // null: none
  nlohmann::ordered_json variables;  // null: none
  std::vector<bool> trained;         // by message: an assistant turn that may carry loss
};

// {"prompt": "...", "completion": "..."}: plain text, no template.
struct CompletionRow {
  std::string prompt;
  std::string completion;
};

// {"text": "..."}: plain text, no template.
struct TextRow {
  std::string text;
};

using Row = std::variant<ConversationRow, CompletionRow, TextRow>;

// The role that a file's name of it stands for: human is user, gpt is assistant, ...
std::string RoleOf(const std::string& theirs, const data::RowNames& names);

// A row's JSON with its columns under the names that the forms have for them. Throws RowError.
nlohmann::ordered_json ReadRow(std::string_view line, const data::RowNames& names,
                               data::Learns learns, data::Form* form);
// What such a row is in that form. Throws RowError.
Row RowOf(data::Form form, const nlohmann::ordered_json& object, const data::RowNames& names);

// A row of a data file, as JSON; `form` (may be null) is set to what it was taken for. Throws
// RowError.
Row ParseRow(std::string_view line, const data::RowNames& names = {}, data::Form* form = nullptr);

}  // namespace sft::engine
