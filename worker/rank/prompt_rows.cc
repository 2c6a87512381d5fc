#include "worker/rank/prompt_rows.h"

#include <fmt/format.h>

#include <sstream>
#include <utility>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/io/file.h"
#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostBytes = int64_t{1} << 30;
// Members that an answer adds.
constexpr const char* kOurs[] = {"answer", "finish_reason", "prompt_tokens", "answer_tokens"};

[[noreturn]] void Refuse(const std::string& what) { throw engine::UserError(what, "bad_prompt"); }

std::vector<engine::ChatMessage> MessagesOf(const Json& list, const char* member) {
  if (!list.is_array() || list.empty())
    Refuse(fmt::format("\"{}\" is no list of messages", member));
  std::vector<engine::ChatMessage> messages;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& message = list[i];
    const auto text = [&](const char* key) {
      if (!message.is_object() || !message.contains(key) || !message[key].is_string()) {
        Refuse(fmt::format("message {} has no text as its \"{}\"", i, key));
      }
      return message[key].get<std::string>();
    };
    for (const auto& item : message.items()) {
      const bool read = item.key() == "role" || item.key() == "content" || item.key() == "weight";
      if (!read && !item.value().is_null()) {
        Refuse(fmt::format("message {} has \"{}\", which prompts cannot have", i, item.key()));
      }
    }
    messages.push_back({.role = text("role"), .content = text("content")});
  }
  if (messages.back().role == "assistant") messages.pop_back();
  if (messages.empty()) Refuse("the conversation holds nothing but an answer");
  return messages;
}

PromptRow RowOf(const std::string& line) {
  PromptRow row;
  JsonProblem problem;
  row.members = ParseOrderedJson(line, {.keys_once = true}, &problem);
  if (row.members.is_discarded()) Refuse("the line starts with a brace, but " + problem.text);
  for (const char* member : kOurs) {
    if (row.members.contains(member)) {
      Refuse(fmt::format("\"{}\" is what the answer adds: rename it", member));
    }
  }
  for (const char* member : {"tools", "chat_template_kwargs"}) {
    if (row.members.contains(member)) Refuse(fmt::format("prompts cannot have \"{}\"", member));
  }
  if (row.members.contains("messages")) {
    row.messages = MessagesOf(row.members["messages"], "messages");
  } else if (!row.members.contains("prompt")) {
    Refuse("the row has neither \"messages\" nor \"prompt\"");
  } else if (row.members["prompt"].is_string()) {
    row.text = row.members["prompt"].get<std::string>();
    if (row.text.empty()) Refuse("\"prompt\" is empty");
  } else {
    row.messages = MessagesOf(row.members["prompt"], "prompt");
  }
  return row;
}

}  // namespace

PromptRow UserPrompt(const std::string& text) {
  PromptRow row;
  row.members = {{"prompt", text}};
  row.messages = {{.role = "user", .content = text}};
  return row;
}

std::vector<PromptRow> ReadPromptRows(const std::string& path) {
  const auto text = io::ReadFile(path, kMostBytes);
  if (!text.ok()) throw engine::UserError(std::string(Message(text.status())), "no_prompts");
  std::vector<PromptRow> rows;
  std::istringstream lines(*text);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (number == 1 && line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
    if (line.ends_with('\r')) line.pop_back();
    const size_t first = line.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    try {
      if (!IsUtf8(line)) Refuse("the line is not UTF-8");
      rows.push_back(line[first] == '{' ? RowOf(line) : UserPrompt(line));
    } catch (const engine::UserError& error) {
      throw engine::UserError(fmt::format("{}:{}: {}", path, number, error.what()), "bad_prompt",
                              "Write one prompt a line: text, or JSON with messages or prompt.");
    }
    rows.back().line = number;
  }
  if (rows.empty()) {
    throw engine::UserError(path + " holds no prompt", "no_prompts", "Write one prompt a line.");
  }
  return rows;
}

std::vector<int32_t> EncodeRow(const engine::ChatTokenizer& tokenizer, const PromptRow& row) {
  if (!row.messages.empty()) return tokenizer.EncodePrompt(row.messages);
  std::vector<int32_t> tokens;
  if (tokenizer.adds_bos()) tokens.push_back(*tokenizer.bos_id());
  const engine::Encoding encoding = tokenizer.tokenizer().EncodeAsPlainText(row.text);
  tokens.insert(tokens.end(), encoding.ids.begin(), encoding.ids.end());
  return tokens;
}

}  // namespace sft::rank
