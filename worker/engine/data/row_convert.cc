#include "worker/engine/data/row_convert.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "common/base/json.h"

namespace sft::engine {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void BadRow(const std::string& reason) {
  throw RowError(RowProblem::kBadForm, reason);
}

// A text, or "" where it may be missing; null is missing.
std::string TextAt(const Json& row, const char* key, bool optional = false) {
  const auto found = row.find(key);
  if (found == row.end() || found->is_null()) {
    if (optional) return "";
    BadRow(fmt::format("no \"{}\"", key));
  }
  if (!found->is_string()) {
    BadRow(fmt::format("{} is a JSON {}, not a string", key, found->type_name()));
  }
  return found->get<std::string>();
}

std::string AnswerAt(const Json& row, const char* key) {
  std::string answer = TextAt(row, key);
  if (answer.empty()) throw RowError(RowProblem::kNoAnswer, fmt::format("the {} is empty", key));
  return answer;
}

Json Message(const char* role, std::string content) {
  return {{"role", role}, {"content", std::move(content)}};
}

// The first of the columns that the row has.
const char* Present(const Json& row, const char* first, const char* second) {
  const auto found = row.find(first);
  return found != row.end() && !found->is_null() ? first : second;
}

// The columns that stand beside the messages, with those in place. In a table every row has the
// column: an empty system text there is none, while an empty system message is one.
Json WithMessages(const Json& row, Json messages) {
  const std::string system = TextAt(row, "system", /*optional=*/true);
  if (!system.empty()) {
    if (!messages.empty() && messages[0].value("role", "") == "system") {
      BadRow("a \"system\" beside a conversation that begins with a system message");
    }
    messages.insert(messages.begin(), Message("system", system));
  }
  Json result = {{"messages", std::move(messages)}};
  for (const char* key : {"tools", "chat_template_kwargs"}) {
    if (const auto found = row.find(key); found != row.end()) result[key] = *found;
  }
  return result;
}

// A call written as the turn's text: {"name", "arguments"}, or a list of such.
Json ToolCalls(const std::string& text, const std::string& where) {
  Json calls = ParseOrderedJson(text);
  if (calls.is_object()) calls = Json::array({calls});
  if (!calls.is_array() || calls.empty()) {
    BadRow(
        fmt::format("{} is a function call, but its value is no JSON object with name and "
                    "arguments",
                    where));
  }
  Json result = Json::array();
  for (Json& call : calls) {
    if (!call.is_object() || !call.contains("name")) {
      BadRow(fmt::format("{} has a function call without a name", where));
    }
    result.push_back({{"type", "function"}, {"function", std::move(call)}});
  }
  return result;
}

Json OfShareGpt(const Json& entry, const std::string& where, const data::RowNames& names) {
  const char* const key = entry.contains("from") ? "from" : "role";
  const std::string theirs = TextAt(entry, key);
  const std::string role = RoleOf(theirs, names);
  Json message = {{"role", role}};
  std::string value = TextAt(entry, "value");
  if (theirs == "function_call") {
    message["content"] = nullptr;
    message["tool_calls"] = ToolCalls(value, where);
  } else {
    message["content"] = std::move(value);
  }
  // The last three are refused, or read, as those of a message are.
  for (const char* extra : {"weight", "train", "thinking", "reasoning_content", "name",
                            "train_detail", "function_call", "tool_calls"}) {
    if (const auto found = entry.find(extra); found != entry.end()) message[extra] = *found;
  }
  return message;
}

}  // namespace

std::string RoleOf(const std::string& theirs, const data::RowNames& names) {
  for (const auto& [name, ours] : names.roles) {
    if (name == theirs) return ours;
  }
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kKnown = {
      {{"human", "user"},
       {"gpt", "assistant"},
       {"chatgpt", "assistant"},
       {"bing", "assistant"},
       {"bard", "assistant"},
       {"model", "assistant"},
       {"function_call", "assistant"},
       {"observation", "tool"}}};
  for (const auto& [name, ours] : kKnown) {
    if (name == theirs) return std::string(ours);
  }
  return theirs;
}

Json ShareGptMessages(const Json& row, const data::RowNames& names) {
  const char* key = "messages";
  for (const char* list : {"conversation", "conversations", "messages"}) {
    if (const auto found = row.find(list); found != row.end() && found->is_array()) key = list;
  }
  const auto list = row.find(key);
  if (list == row.end() || !list->is_array()) {
    BadRow("\"conversations\" is not a list of messages");
  }
  Json messages = Json::array();
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}[{}]", key, i);
    const Json& entry = (*list)[i];
    if (!entry.is_object()) BadRow(fmt::format("{} is not an object", where));
    messages.push_back(entry.contains("value") ? OfShareGpt(entry, where, names) : entry);
  }
  return WithMessages(row, std::move(messages));
}

Json HistoryMessages(const Json& row) {
  Json messages = Json::array();
  if (const auto history = row.find("history"); history != row.end() && !history->is_null()) {
    if (!history->is_array()) BadRow("history is not a list of pairs");
    for (const Json& pair : *history) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
        BadRow("history has an entry that is not a question and its answer, both text");
      }
      messages.push_back(Message("user", pair[0].get<std::string>()));
      messages.push_back(Message("assistant", pair[1].get<std::string>()));
    }
  }
  return messages;
}

Json AlpacaMessages(const Json& row) {
  Json messages = HistoryMessages(row);
  std::string question = TextAt(row, "instruction");
  const std::string input = TextAt(row, "input", /*optional=*/true);
  if (!input.empty()) question += "\n" + input;
  messages.push_back(Message("user", std::move(question)));
  messages.push_back(Message("assistant", AnswerAt(row, Present(row, "output", "response"))));
  return WithMessages(row, std::move(messages));
}

std::string StanfordPrompt(const Json& row) {
  for (const char* key : {"history", "system", "tools"}) {
    const auto found = row.find(key);
    if (found == row.end() || found->is_null() || found->empty() || *found == "") continue;
    BadRow(fmt::format("{} has no place in Stanford's prompt (data.alpaca_prompt)", key));
  }
  const std::string instruction = TextAt(row, "instruction");
  const std::string input = TextAt(row, "input", /*optional=*/true);
  if (input.empty()) {
    return fmt::format(
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n### Instruction:\n{}\n\n### Response:",
        instruction);
  }
  return fmt::format(
      "Below is an instruction that describes a task, paired with an input that provides further "
      "context. Write a response that appropriately completes the request.\n\n### "
      "Instruction:\n{}\n\n### Input:\n{}\n\n### Response:",
      instruction, input);
}

CompletionRow StanfordRow(const Json& row) {
  return {StanfordPrompt(row), AnswerAt(row, Present(row, "output", "response"))};
}

Json QuestionMessages(const Json& row) {
  Json messages = Json::array();
  messages.push_back(Message("user", TextAt(row, Present(row, "question", "query"))));
  messages.push_back(Message("assistant", AnswerAt(row, Present(row, "answer", "response"))));
  return WithMessages(row, std::move(messages));
}

}  // namespace sft::engine
