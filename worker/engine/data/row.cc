#include "worker/engine/data/row.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "common/base/json.h"

namespace sft::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

[[noreturn]] void BadForm(const std::string& reason) {
  throw RowError(RowProblem::kBadForm, reason);
}

Json ParseObject(std::string_view line) {
  JsonProblem problem;
  Json json = ParseOrderedJson(line, {}, &problem);
  if (json.is_discarded() && problem.kind == JsonProblem::kDepth) BadForm(problem.text);
  if (json.is_discarded()) {
    // "parse error at line 1, column 9: ...": the last part matters.
    const size_t at = problem.text.find("column ");
    throw RowError(
        RowProblem::kNotJson,
        fmt::format("not JSON: {}", problem.text.substr(at == problem.text.npos ? 0 : at)));
  }
  if (!json.is_object()) {
    throw RowError(RowProblem::kNotJson, fmt::format("a JSON {}, not an object", json.type_name()));
  }
  return json;
}

// Content given as a list of text parts becomes one string.
void JoinContentParts(Json& message, const std::string& where) {
  Json& content = message["content"];
  if (content.is_string() || content.is_null()) return;
  if (!content.is_array()) {
    BadForm(fmt::format("{}.content is a JSON {}, not a string", where, content.type_name()));
  }
  std::string text;
  for (const Json& part : content) {
    if (part.is_object() && part.value("type", "") == "text" && part.contains("text") &&
        part.at("text").is_string()) {
      text += part.at("text").get<std::string>();
    } else {
      BadForm(
          fmt::format("{}.content has a part that is not text; only text can be trained", where));
    }
  }
  content = text;
}

// Templates know a turn's reasoning by either name.
void NameThinkingBothWays(Json& message, const std::string& where) {
  constexpr std::array<const char*, 2> kNames = {"thinking", "reasoning_content"};
  for (int i = 0; i < 2; ++i) {
    const auto found = message.find(kNames[i]);
    if (found == message.end() || found->is_null()) continue;
    if (!found->is_string()) BadForm(fmt::format("{}.{} is not a string", where, kNames[i]));
    const Json value = *found;
    if (!message.contains(kNames[1 - i])) message[kNames[1 - i]] = value;
  }
}

// OpenAI writes a tool call's arguments as a string of JSON; templates print objects.
void ParseToolArguments(Json& message, const std::string& where) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return;
  if (!calls->is_array()) BadForm(fmt::format("{}.tool_calls is not a list", where));
  for (Json& call : *calls) {
    if (!call.is_object())
      BadForm(fmt::format("{}.tool_calls has an entry that is not an object", where));
    Json& function = call.contains("function") ? call["function"] : call;
    if (!function.is_object() || !function.contains("arguments")) continue;
    Json& arguments = function["arguments"];
    if (!arguments.is_string()) continue;
    const Json parsed = ParseOrderedJson(arguments.get<std::string>());
    if (parsed.is_object()) arguments = parsed;
  }
}

// OpenAI's per-message weight: 0 keeps an assistant turn out of the loss.
bool TakeWeight(Json& message, const std::string& where) {
  const auto found = message.find("weight");
  if (found == message.end()) return true;
  const Json weight = *found;
  message.erase("weight");
  if (weight.is_null() || weight == 1) return true;
  if (weight == 0) return false;
  BadForm(fmt::format("{}.weight is {}; it may be 0 or 1", where, DumpJson(weight)));
}

void AddMessages(const Json& list, const char* key, bool trained, ConversationRow& row) {
  if (!list.is_array()) BadForm(fmt::format("{} is not a list of messages", key));
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", key, i);
    Json message = list[i];
    if (!message.is_object()) BadForm(fmt::format("{} is not an object", where));
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string()) BadForm(fmt::format("{} has no role", where));
    const auto name = role->get<std::string>();
    if (std::ranges::find(kRoles, name) == kRoles.end()) {
      BadForm(fmt::format("{} has the role \"{}\"; roles are {}", where, name,
                          fmt::join(kRoles, ", ")));
    }
    const bool has_calls = message.contains("tool_calls") && !message["tool_calls"].is_null();
    if ((!message.contains("content") || message["content"].is_null()) && !has_calls) {
      BadForm(fmt::format("{} has no content", where));
    }
    if (message.contains("content")) JoinContentParts(message, where);
    NameThinkingBothWays(message, where);
    ParseToolArguments(message, where);
    const bool weighted = TakeWeight(message, where);
    row.trained.push_back(trained && weighted && name == "assistant");
    row.messages.push_back(std::move(message));
  }
}

void AddExtras(const Json& object, ConversationRow& row) {
  if (const auto tools = object.find("tools"); tools != object.end() && !tools->is_null()) {
    if (!tools->is_array()) BadForm("tools is not a list");
    if (!tools->empty()) row.tools = *tools;
  }
  const auto variables = object.find("chat_template_kwargs");
  if (variables != object.end() && !variables->is_null()) {
    if (!variables->is_object()) BadForm("chat_template_kwargs is not an object");
    row.variables = *variables;
  }
  if (row.messages.empty())
    throw RowError(RowProblem::kNoAnswer, "the conversation has no messages");
  if (std::ranges::find(row.trained, true) == row.trained.end()) {
    throw RowError(RowProblem::kNoAnswer, "no assistant message to learn from");
  }
}

std::string StringAt(const Json& object, const char* key) {
  const Json& value = object.at(key);
  if (!value.is_string())
    BadForm(fmt::format("{} is a JSON {}, not a string", key, value.type_name()));
  return value.get<std::string>();
}

}  // namespace

Row ParseRow(std::string_view line) {
  const Json object = ParseObject(line);
  if (object.contains("messages")) {
    ConversationRow row{.messages = Json::array()};
    AddMessages(object.at("messages"), "messages", /*trained=*/true, row);
    AddExtras(object, row);
    return row;
  }
  if (object.contains("prompt") && object.contains("completion")) {
    if (object.at("prompt").is_array() && object.at("completion").is_array()) {
      ConversationRow row{.messages = Json::array()};
      AddMessages(object.at("prompt"), "prompt", /*trained=*/false, row);
      AddMessages(object.at("completion"), "completion", /*trained=*/true, row);
      AddExtras(object, row);
      return row;
    }
    CompletionRow row{StringAt(object, "prompt"), StringAt(object, "completion")};
    if (row.completion.empty()) throw RowError(RowProblem::kNoAnswer, "the completion is empty");
    return row;
  }
  if (object.contains("text")) {
    TextRow row{StringAt(object, "text")};
    if (row.text.empty()) throw RowError(RowProblem::kNoAnswer, "the text is empty");
    return row;
  }
  if (object.contains("prompt"))
    throw RowError(RowProblem::kNoAnswer, "a prompt without a completion");
  BadForm("no \"messages\", no \"prompt\" with \"completion\" and no \"text\"");
}

}  // namespace sft::engine
