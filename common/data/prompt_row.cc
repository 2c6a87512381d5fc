#include "common/data/prompt_row.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "common/base/json.h"
#include "common/data/row_reader.h"

namespace sft::data {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Members that an answer adds.
constexpr const char* kAdded[] = {"answer",        "finish_reason", "prompt_tokens",
                                  "answer_tokens", "sample",        "error"};

absl::StatusOr<std::string> TextOf(const OrderedJson& message, size_t number, const char* key) {
  if (!message.is_object() || !message.contains(key) || !message[key].is_string()) {
    return InvalidArgument(fmt::format("message {} has no text as its \"{}\"", number, key));
  }
  return message[key].get<std::string>();
}

absl::StatusOr<std::vector<PromptMessage>> MessagesOf(const OrderedJson& list, const char* member) {
  if (!list.is_array() || list.empty()) {
    return InvalidArgument(fmt::format("\"{}\" is no list of messages", member));
  }
  std::vector<PromptMessage> messages;
  for (size_t i = 0; i < list.size(); ++i) {
    PromptMessage message;
    SFT_ASSIGN_OR_RETURN(message.role, TextOf(list[i], i, "role"));
    SFT_ASSIGN_OR_RETURN(message.content, TextOf(list[i], i, "content"));
    for (const auto& item : list[i].items()) {
      const bool read = item.key() == "role" || item.key() == "content" || item.key() == "weight";
      if (read || item.value().is_null()) continue;
      return InvalidArgument(
          fmt::format("message {} has \"{}\", which prompts cannot have", i, item.key()));
    }
    messages.push_back(std::move(message));
  }
  if (messages.back().role == "assistant") messages.pop_back();
  if (messages.empty()) return InvalidArgument("the conversation holds nothing but an answer");
  return messages;
}

absl::Status CheckMembers(const OrderedJson& members) {
  for (const char* member : kAdded) {
    if (members.contains(member)) {
      return InvalidArgument(fmt::format("\"{}\" is what the answer adds: rename it", member));
    }
  }
  for (const char* member : {"tools", "chat_template_kwargs"}) {
    if (members.contains(member)) {
      return InvalidArgument(fmt::format("prompts cannot have \"{}\"", member));
    }
  }
  return absl::OkStatus();
}

using TakePrompt = std::function<void(PromptRow row)>;

absl::Status ForEachPrompt(const std::string& path, std::string_view name, int64_t most,
                           const TakePrompt& take) {
  int64_t taken = 0;
  const TakeRow read = [&](int64_t line, std::string_view text) -> absl::StatusOr<bool> {
    absl::StatusOr<PromptRow> row = ReadPromptRow(text);
    if (!row.ok()) return Annotate(row.status(), fmt::format("line {}", line));
    row->line = line;
    take(*std::move(row));
    ++taken;
    return most == 0 || taken < most;
  };
  SFT_RETURN_IF_ERROR(ReadRows(path, name, {}, read));
  return taken > 0 ? absl::OkStatus() : InvalidArgument("there is no prompt in it");
}

}  // namespace

absl::StatusOr<PromptRow> ReadPromptRow(std::string_view text) {
  PromptRow row;
  JsonProblem problem;
  row.members = ParseOrderedJson(text, {.keys_once = true}, &problem);
  if (row.members.is_discarded()) return InvalidArgument("not JSON: " + problem.text);
  if (!row.members.is_object()) {
    return InvalidArgument(fmt::format("a JSON {}, not an object", row.members.type_name()));
  }
  SFT_RETURN_IF_ERROR(CheckMembers(row.members));
  if (row.members.contains("messages")) {
    SFT_ASSIGN_OR_RETURN(row.messages, MessagesOf(row.members["messages"], "messages"));
  } else if (!row.members.contains("prompt")) {
    return InvalidArgument("the row has neither \"messages\" nor \"prompt\"");
  } else if (row.members["prompt"].is_string()) {
    row.text = row.members["prompt"].get<std::string>();
    if (row.text.empty()) return InvalidArgument("\"prompt\" is empty");
  } else {
    SFT_ASSIGN_OR_RETURN(row.messages, MessagesOf(row.members["prompt"], "prompt"));
  }
  return row;
}

PromptRow UserPrompt(const std::string& text) {
  PromptRow row;
  row.members = {{"prompt", text}};
  row.messages = {{.role = "user", .content = text}};
  return row;
}

absl::StatusOr<std::vector<PromptRow>> ReadPromptRows(const std::string& path,
                                                      std::string_view name, int64_t most) {
  std::vector<PromptRow> rows;
  SFT_RETURN_IF_ERROR(
      ForEachPrompt(path, name, most, [&](PromptRow row) { rows.push_back(std::move(row)); }));
  return rows;
}

absl::StatusOr<int64_t> CountPromptRows(const std::string& path, std::string_view name,
                                        int64_t most) {
  int64_t rows = 0;
  SFT_RETURN_IF_ERROR(ForEachPrompt(path, name, most, [&](const PromptRow&) { ++rows; }));
  return rows;
}

}  // namespace sft::data
