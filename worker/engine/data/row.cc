#include "worker/engine/data/row.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "common/base/json.h"
#include "worker/engine/data/row_convert.h"

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

// Templates know a turn's reasoning by either name, and ask whether it is there.
void NameThinkingBothWays(Json& message, const std::string& where) {
  constexpr std::array<const char*, 2> kNames = {"thinking", "reasoning_content"};
  for (int i = 0; i < 2; ++i) {
    const auto found = message.find(kNames[i]);
    if (found == message.end()) continue;
    if (found->is_null()) {
      message.erase(found);
      continue;
    }
    if (!found->is_string()) BadForm(fmt::format("{}.{} is not a string", where, kNames[i]));
    const Json value = *found;
    if (!message.contains(kNames[1 - i])) message[kNames[1 - i]] = value;
  }
}

// OpenAI writes a tool call's arguments as a string of JSON; templates print objects.
void ParseToolArguments(Json& message, const std::string& where) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  if (calls->is_null()) {
    message.erase(calls);
    return;
  }
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

// OpenAI's per-message weight: 0 keeps an assistant turn out of the loss. Others write it as
// "train": false.
bool TakeWeight(Json& message, const std::string& where) {
  bool trained = true;
  for (const char* key : {"weight", "train"}) {
    const auto found = message.find(key);
    if (found == message.end()) continue;
    const Json value = *found;
    message.erase(key);
    if (value.is_null()) continue;
    const bool is_weight = key == std::string_view("weight");
    if (is_weight ? value != 0 && value != 1 : !value.is_boolean()) {
      BadForm(fmt::format("{}.{} is {}; it may be {}", where, key, DumpJson(value),
                          is_weight ? "0 or 1" : "true or false"));
    }
    trained = trained && (is_weight ? value == 1 : value.get<bool>());
  }
  return trained;
}

// What would change the answer and is not read.
void RefuseForeignKeys(const Json& message, const std::string& where) {
  for (const auto& [key, instead] : {std::pair("function_call", "tool_calls"),
                                     std::pair("train_detail", "whole turns: train")}) {
    const auto found = message.find(key);
    if (found == message.end() || found->is_null()) continue;
    BadForm(fmt::format("{}.{} is not read; write it as {}", where, key, instead));
  }
}

// An assistant's turn in which there is nothing to say, nothing to think and nothing to call.
bool IsEmptyAnswer(const Json& message) {
  return std::ranges::none_of(std::array{"content", "tool_calls", "thinking", "reasoning_content"},
                              [&message](const char* key) {
                                const auto found = message.find(key);
                                return found != message.end() && !found->is_null() &&
                                       !found->empty() && *found != "";
                              });
}

void AddMessages(const Json& list, const char* key, bool trained, const data::RowNames& names,
                 ConversationRow& row) {
  if (!list.is_array()) BadForm(fmt::format("{} is not a list of messages", key));
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", key, i);
    Json message = list[i];
    if (!message.is_object()) BadForm(fmt::format("{} is not an object", where));
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string()) BadForm(fmt::format("{} has no role", where));
    const std::string name = RoleOf(role->get<std::string>(), names);
    *role = name;
    if (std::ranges::find(kRoles, name) == kRoles.end()) {
      BadForm(fmt::format("{} has the role \"{}\"; roles are {}; name others with data.roles",
                          where, name, fmt::join(kRoles, ", ")));
    }
    RefuseForeignKeys(message, where);
    const bool has_calls = message.contains("tool_calls") && !message["tool_calls"].is_null();
    if ((!message.contains("content") || message["content"].is_null()) && !has_calls) {
      BadForm(fmt::format("{} has no content", where));
    }
    if (message.contains("content")) JoinContentParts(message, where);
    NameThinkingBothWays(message, where);
    ParseToolArguments(message, where);
    const bool learnt = TakeWeight(message, where) && trained && name == "assistant";
    if (learnt && IsEmptyAnswer(message)) {
      throw RowError(
          RowProblem::kNoAnswer,
          fmt::format("the answer {} is empty; with \"weight\": 0 it is not learnt", where));
    }
    row.trained.push_back(learnt);
    row.messages.push_back(std::move(message));
  }
}

void AddExtras(const Json& object, ConversationRow& row) {
  if (const auto found = object.find("tools"); found != object.end() && !found->is_null()) {
    Json tools = *found;
    // Tables hold lists as text.
    if (tools.is_string()) {
      const auto text = tools.get<std::string>();
      tools = text.empty() ? Json::array() : ParseOrderedJson(text);
    }
    if (!tools.is_array()) BadForm("tools is not a list");
    if (!tools.empty()) row.tools = std::move(tools);
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
  const std::string last = row.messages.back().value("role", "");
  if (last != "assistant" && last != "tool") {
    throw RowError(RowProblem::kNoAnswer,
                   fmt::format("the conversation ends with a message of the {}, which nothing "
                               "answers; take it out, or add its answer",
                               last));
  }
}

std::string StringAt(const Json& object, const char* key) {
  const Json& value = object.at(key);
  if (!value.is_string())
    BadForm(fmt::format("{} is a JSON {}, not a string", key, value.type_name()));
  return value.get<std::string>();
}

// Rows speak of pictures by a word in their text; without them it is nonsense.
void RefuseMedia(const Json& object) {
  for (const char* key : {"image", "images", "video", "videos", "audio", "audios"}) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null() || found->empty()) continue;
    if (found->is_string() && found->get_ref<const std::string&>().empty()) continue;
    BadForm(fmt::format("it has \"{}\"; only text can be trained", key));
  }
}

ConversationRow Conversation(const Json& object, const char* key, const data::RowNames& names) {
  ConversationRow row{.messages = Json::array()};
  AddMessages(object.at(key), key, /*trained=*/true, names, row);
  AddExtras(object, row);
  return row;
}

// A column beside the messages or the prompt.
bool HasSystem(const Json& object) {
  const auto found = object.find("system");
  return found != object.end() && !found->is_null() && *found != "";
}

Row PromptAndCompletion(const Json& object, const data::RowNames& names) {
  const auto has = [&object](const char* key) {
    return object.contains(key) && !object.at(key).is_null();
  };
  const char* const answer = object.contains("completion") ? "completion"
                             : has("response")             ? "response"
                                                           : "answer";
  if (HasSystem(object)) {
    BadForm(
        "a \"system\" beside a prompt is not read; write it into the prompt, or the row as "
        "\"messages\"");
  }
  if (object.at("prompt").is_array() && object.at(answer).is_array()) {
    ConversationRow row{.messages = Json::array()};
    AddMessages(object.at("prompt"), "prompt", /*trained=*/false, names, row);
    AddMessages(object.at(answer), answer, /*trained=*/true, names, row);
    AddExtras(object, row);
    return row;
  }
  CompletionRow row{StringAt(object, "prompt"), StringAt(object, answer)};
  if (row.completion.empty()) {
    throw RowError(RowProblem::kNoAnswer, fmt::format("the {} is empty", answer));
  }
  return row;
}

// Puts the columns under the names that the forms have for them.
void Rename(Json& object, const data::RowNames& names) {
  std::vector<std::pair<std::string, Json>> values;
  for (const auto& [theirs, ours] : names.columns) {
    if (const auto found = object.find(theirs); found != object.end()) {
      values.emplace_back(ours, std::move(*found));
      object.erase(found);
    }
  }
  for (const auto& [theirs, ours] : names.columns) object.erase(ours);
  for (auto& [name, value] : values) object[name] = std::move(value);
}

}  // namespace

Row RowOf(data::Form form, const Json& object, const data::RowNames& names) {
  switch (form) {
    case data::Form::kMessages:
      if (object.contains("messages") && !object.at("messages").is_null() && !HasSystem(object)) {
        return Conversation(object, "messages", names);
      }
      return Conversation(ShareGptMessages(object, names), "messages", names);
    case data::Form::kShareGpt:
    case data::Form::kMixed:
      return Conversation(ShareGptMessages(object, names), "messages", names);
    case data::Form::kAlpaca:
      if (names.stanford) return StanfordRow(object);
      return Conversation(AlpacaMessages(object), "messages", names);
    case data::Form::kQuestion:
      return Conversation(QuestionMessages(object), "messages", names);
    case data::Form::kCompletion:
      return PromptAndCompletion(object, names);
    case data::Form::kText: {
      TextRow row{StringAt(object, "text")};
      if (row.text.empty()) throw RowError(RowProblem::kNoAnswer, "the text is empty");
      return row;
    }
    case data::Form::kPromptOnly:
      throw RowError(RowProblem::kNoAnswer, "a prompt without a completion");
    default:
      break;
  }
  if (const std::string_view refusal = data::FormRefusal(form); !refusal.empty()) {
    BadForm(std::string(refusal));
  }
  BadForm(
      "no \"messages\", no \"conversations\", no \"prompt\" with \"completion\", no "
      "\"instruction\" with \"output\", no \"question\" with \"answer\" and no \"text\"");
}

Json ReadRow(std::string_view line, const data::RowNames& names, data::Learns learns,
             data::Form* form) {
  Json object = ParseObject(line);
  *form = data::ShapeOf(line, names, learns).form;
  Rename(object, names);
  for (const auto& [capitals, name] :
       {std::pair("INSTRUCTION", "instruction"), std::pair("RESPONSE", "response")}) {
    const auto column = object.find(capitals);
    if (column != object.end()) object[name] = Json(*column);
  }
  RefuseMedia(object);
  return object;
}

Row ParseRow(std::string_view line, const data::RowNames& names, data::Form* form) {
  data::Form own = data::Form::kUnknown;
  data::Form& found = form != nullptr ? *form : own;
  const Json object = ReadRow(line, names, data::Learns::kTexts, &found);
  return RowOf(found, object, names);
}

}  // namespace sft::engine
