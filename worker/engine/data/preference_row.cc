#include "worker/engine/data/preference_row.h"

#include <fmt/format.h>

#include <algorithm>

#include "worker/engine/data/row_convert.h"

namespace sft::engine {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void RefusePreference(const std::string& reason) {
  throw RowError(RowProblem::kBadForm, reason);
}

bool HasValue(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

// A list of messages, also where it is written as ShareGPT has it, or as a single one.
Json MessageList(Json value, const data::RowNames& names) {
  if (value.is_object()) value = Json::array({std::move(value)});
  const bool converts = value.is_array() && std::ranges::any_of(value, [](const Json& entry) {
                          return entry.is_object() && entry.contains("value");
                        });
  if (!converts) return value;
  return ShareGptMessages(Json{{"conversations", std::move(value)}}, names).at("messages");
}

// What a row's answers have in common.
struct Question {
  Json prompt;  // text or messages; null: it is in the answers
  Json extras = Json::object();
};

// Of Alpaca's columns and of question sets: a conversation, as without preferences.
Json AskedQuestion(const Json& object) {
  for (const char* key : {"instruction", "question"}) {
    if (!HasValue(object, key)) continue;
    if (!object.at(key).is_string()) RefusePreference(fmt::format("{} is not a text", key));
    auto text = object.at(key).get<std::string>();
    const bool more = key == std::string_view("instruction") && HasValue(object, "input") &&
                      object.at("input").is_string() && object.at("input") != "";
    if (more) text += "\n" + object.at("input").get<std::string>();
    return Json::array({Json{{"role", "user"}, {"content", std::move(text)}}});
  }
  return nullptr;
}

Question QuestionOfRow(const Json& object, const data::RowNames& names) {
  Question question;
  const Json* source = &object;
  if (HasValue(object, "input") && object.at("input").is_object()) source = &object.at("input");
  for (const char* key : {"tools", "chat_template_kwargs"}) {
    if (HasValue(*source, key)) question.extras[key] = source->at(key);
  }
  for (const char* key : {"prompt", "conversations", "conversation", "messages"}) {
    // "messages" beside a pair repeat the chosen answer; within "input" they are the prompt.
    if (key == std::string_view("messages") && source == &object) continue;
    if (!HasValue(*source, key)) continue;
    question.prompt = MessageList(source->at(key), names);
    break;
  }
  if (question.prompt.is_null()) question.prompt = AskedQuestion(object);
  const bool has_system = HasValue(object, "system") && object.at("system") != "";
  if (has_system && question.prompt.is_array()) {
    question.prompt.insert(question.prompt.begin(),
                           Json{{"role", "system"}, {"content", object.at("system")}});
  } else if (has_system) {
    question.extras["system"] = object.at("system");  // refused with the reason
  }
  return question;
}

size_t CommonMessages(const Json& a, const Json& b) {
  size_t common = 0;
  while (common < std::min(a.size(), b.size()) && a[common] == b[common]) ++common;
  return common;
}

// Where two texts differ first, at the start of a word.
size_t CommonText(const std::string& a, const std::string& b) {
  const size_t most = std::min(a.size(), b.size());
  size_t common = 0;
  while (common < most && a[common] == b[common]) ++common;
  const auto blank = [&](size_t at) { return a[at] == ' ' || a[at] == '\n' || a[at] == '\t'; };
  while (common > 0 && !blank(common - 1)) --common;
  while (common > 0 && blank(common - 1)) --common;
  return common;
}

// Takes the common start of both answers for the prompt.
void TakePrompt(Json& chosen, Json& rejected, Json& prompt) {
  if (chosen.is_string()) {
    const auto good = chosen.get<std::string>(), bad = rejected.get<std::string>();
    const size_t common = CommonText(good, bad);
    prompt = good.substr(0, common);
    chosen = good.substr(common);
    rejected = bad.substr(common);
    return;
  }
  const size_t common = CommonMessages(chosen, rejected);
  if (common == 0) RefusePreference("no \"prompt\", and chosen and rejected begin differently");
  prompt = Json::array();
  for (size_t i = 0; i < common; ++i) prompt.push_back(chosen[i]);
  for (Json* answer : {&chosen, &rejected}) {
    answer->erase(answer->begin(), answer->begin() + static_cast<int64_t>(common));
  }
}

// Answers of messages often repeat the prompt.
bool RepeatsPrompt(const Json& answer, const Json& prompt) {
  if (!answer.is_array() || answer.empty()) return false;
  if (prompt.is_array()) return !prompt.empty() && CommonMessages(answer, prompt) == prompt.size();
  for (const Json& message : answer) {
    if (!message.is_object() || !message.contains("role") || message.at("role") != "user") continue;
    return message.contains("content") && message.at("content") == prompt;
  }
  return false;
}

Row AnswerTo(const Question& question, const Json& answer, const data::RowNames& names) {
  Json object = question.extras;
  object["prompt"] = question.prompt;
  if (question.prompt.is_string() && answer.is_array()) {
    object["prompt"] = Json::array({Json{{"role", "user"}, {"content", question.prompt}}});
  } else if (question.prompt.is_array() && answer.is_string()) {
    object["completion"] = Json::array({Json{{"role", "assistant"}, {"content", answer}}});
  }
  if (!object.contains("completion")) object["completion"] = answer;
  return RowOf(data::Form::kCompletion, object, names);
}

std::vector<MarkedAnswer> PairOf(const Json& object, const data::RowNames& names) {
  const bool ours = HasValue(object, "chosen") && HasValue(object, "rejected");
  Json chosen = MessageList(object.at(ours ? "chosen" : "preferred_output"), names);
  Json rejected = MessageList(object.at(ours ? "rejected" : "non_preferred_output"), names);
  if (chosen.type() != rejected.type() || (!chosen.is_string() && !chosen.is_array())) {
    RefusePreference("chosen and rejected must both be text, or both messages");
  }
  if (chosen == rejected) {
    throw RowError(RowProblem::kSameAnswers, "the chosen and the rejected answer are equal");
  }
  Question question = QuestionOfRow(object, names);
  const bool repeated =
      RepeatsPrompt(chosen, question.prompt) && RepeatsPrompt(rejected, question.prompt);
  if (question.prompt.is_null() || repeated) TakePrompt(chosen, rejected, question.prompt);
  return {{AnswerTo(question, chosen, names), true}, {AnswerTo(question, rejected, names), false}};
}

MarkedAnswer MarkedOf(const Json& object, const data::RowNames& names) {
  const char* const key = HasValue(object, "label") ? "label" : "kto_tag";
  if (!HasValue(object, key) || !object.at(key).is_boolean()) {
    RefusePreference("no \"label\" that says whether the answer is good: true or false");
  }
  const bool good = object.at(key).get<bool>();
  if (HasValue(object, "prompt")) return {RowOf(data::Form::kCompletion, object, names), good};
  // A conversation: its last message is the answer.
  Json messages = ShareGptMessages(object, names).at("messages");
  if (messages.size() < 2) RefusePreference("a conversation without a question and its answer");
  Question question = QuestionOfRow(Json::object(), names);
  for (const char* extra : {"tools", "chat_template_kwargs"}) {
    if (HasValue(object, extra)) question.extras[extra] = object.at(extra);
  }
  const Json answer = Json::array({messages.back()});
  messages.erase(messages.end() - 1);
  question.prompt = std::move(messages);
  return {AnswerTo(question, answer, names), good};
}

// Tokens before the answer.
int64_t PromptTokens(const EncodedRow& row) {
  return std::ranges::find(row.loss, 1) - row.loss.begin();
}

void Mark(EncodedRow& row, bool good, bool prompt_too) {
  for (size_t i = 0; i < row.loss.size(); ++i) {
    if (row.loss[i] != 0) {
      row.loss[i] = good ? kPredicted : kPredicted | kOfBadAnswer;
    } else if (prompt_too && good && i > 0) {
      row.loss[i] = kPredicted | kBesideAnswer;
    }
  }
}

}  // namespace

std::vector<MarkedAnswer> ParsePreference(std::string_view line, const data::RowNames& names,
                                          data::Learns learns, data::Form* form) {
  const Json object = ReadRow(line, names, learns, form);
  if (const std::string_view refusal = data::FormRefusal(*form, learns); !refusal.empty()) {
    RefusePreference(std::string(refusal));
  }
  if (*form == data::Form::kPreference) return PairOf(object, names);
  std::vector<MarkedAnswer> answers;
  answers.push_back(MarkedOf(object, names));
  return answers;
}

EncodedAnswers EncodeAnswers(const RowEncoder& encoder, const std::vector<MarkedAnswer>& answers,
                             bool prompt_too, const LongRowRule& rule) {
  EncodedAnswers encoded;
  int64_t longest = 0, least_prompt = rule.length, bos = 0;
  for (const MarkedAnswer& answer : answers) {
    EncodedRow row = encoder.Encode(answer.row);
    longest = std::max(longest, static_cast<int64_t>(row.tokens.size()));
    bos = encoder.StartsWithBos(row) ? 1 : 0;
    // One token stays, which predicts the first of the answer.
    least_prompt = std::min(least_prompt, PromptTokens(row) - std::max<int64_t>(bos, 1));
    encoded.documents.push_back(std::move(row));
  }
  const int64_t excess = std::max<int64_t>(0, longest - rule.length);
  if (excess > 0 && (rule.rule != spec::LongRows::kTruncateLeft || least_prompt < excess)) {
    throw RowError(
        RowProblem::kTooLong,
        fmt::format("{} tokens{}, sequence_length is {}", longest,
                    least_prompt < excess ? ", most of them of an answer" : "", rule.length));
  }
  for (size_t i = 0; i < encoded.documents.size(); ++i) {
    EncodedRow& row = encoded.documents[i];
    row.tokens.erase(row.tokens.begin() + bos, row.tokens.begin() + bos + excess);
    row.loss.erase(row.loss.begin() + bos, row.loss.begin() + bos + excess);
    row.breaks.clear();
    row.loss[0] = 0;
    Mark(row, answers[i].good, prompt_too);
  }
  encoded.cut_tokens = excess * static_cast<int64_t>(encoded.documents.size());
  if (encoded.documents.size() == 2 && encoded.documents[0].tokens == encoded.documents[1].tokens) {
    throw RowError(RowProblem::kSameAnswers, "the chosen and the rejected answer are equal");
  }
  return encoded;
}

}  // namespace sft::engine
