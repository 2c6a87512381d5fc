#include "worker/engine/data/preference_row.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/utf8.h"
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
  Json system;  // the column's text; null: none
  Json extras = Json::object();
};

Json MessageOf(const char* role, Json content) {
  return Json{{"role", role}, {"content", std::move(content)}};
}

// Alpaca's columns and those of question sets, as a conversation, or as Stanford's text; null where
// the row has neither.
Json AskedQuestion(const Json& object, const data::RowNames& names) {
  for (const char* key : {"instruction", "question", "query"}) {
    if (!HasValue(object, key)) continue;
    if (!object.at(key).is_string()) RefusePreference(fmt::format("{} is not a text", key));
    auto text = object.at(key).get<std::string>();
    const bool alpaca = key == std::string_view("instruction");
    if (alpaca && names.stanford) return StanfordPrompt(object);
    const bool more = alpaca && HasValue(object, "input") && object.at("input").is_string() &&
                      object.at("input") != "";
    if (more) text += "\n" + object.at("input").get<std::string>();
    Json messages = alpaca ? HistoryMessages(object) : Json::array();
    messages.push_back(MessageOf("user", std::move(text)));
    return messages;
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
  if (question.prompt.is_null()) question.prompt = AskedQuestion(object, names);
  if (HasValue(object, "system") && object.at("system") != "")
    question.system = object.at("system");
  return question;
}

bool HasRole(const Json& message, std::initializer_list<std::string_view> roles,
             const data::RowNames& names) {
  if (!message.is_object() || !message.contains("role") || !message.at("role").is_string()) {
    return false;
  }
  return std::ranges::find(roles, RoleOf(message.at("role").get<std::string>(), names)) !=
         roles.end();
}

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

// Equal for messages that say the same: whatever the order of their keys, empty columns of a table,
// and blanks around a question.
nlohmann::json Comparable(const Json& message, const data::RowNames& names) {
  if (!message.is_object()) return message;
  nlohmann::json result = nlohmann::json::object();
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) result[key] = value;
  }
  for (const char* role : {"system", "developer", "user"}) {
    if (!HasRole(message, {role}, names)) continue;
    result["role"] = role;
    if (const auto text = result.find("content"); text != result.end() && text->is_string()) {
      *text = Trimmed(text->get<std::string>());
    }
  }
  return result;
}

// How many of the messages behind the first `from` of `a` begin `b` too.
size_t CommonMessages(const Json& a, const Json& b, const data::RowNames& names, size_t from = 0) {
  size_t common = 0;
  while (from + common < a.size() && common < b.size() &&
         Comparable(a[from + common], names) == Comparable(b[common], names)) {
    ++common;
  }
  return common;
}

// Whether a text can be cut behind its first `at` bytes: behind a blank, or behind a character of a
// script that is written without them.
bool EndsWord(std::string_view text, size_t at) {
  if (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80) return false;
  if (text[at - 1] == ' ' || text[at - 1] == '\n' || text[at - 1] == '\t') return true;
  size_t begin = at - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
  std::string_view last = text.substr(begin, at - begin);
  bool valid = true;
  const char32_t c = TakeCharacter(last, valid);
  const bool hangul = c >= 0xac00 && c <= 0xd7af;
  const bool southeast = (c >= 0xe00 && c <= 0xeff) || (c >= 0x1000 && c <= 0x109f) ||
                         (c >= 0x1780 && c <= 0x17ff);  // Thai, Lao, Burmese, Khmer
  return southeast || (c >= 0x2e80 && !hangul);
}

// Where two texts differ first, at the start of a word.
size_t CommonText(const std::string& a, const std::string& b) {
  const size_t most = std::min(a.size(), b.size());
  size_t common = 0;
  while (common < most && a[common] == b[common]) ++common;
  const auto blank = [&](size_t at) { return a[at] == ' ' || a[at] == '\n' || a[at] == '\t'; };
  while (common > 0 && !(EndsWord(a, common) && EndsWord(b, common))) --common;
  while (common > 0 && blank(common - 1)) --common;
  return common;
}

void EraseFirst(Json& messages, size_t count) {
  messages.erase(messages.begin(), messages.begin() + static_cast<int64_t>(count));
}

// Takes the common start of both answers for the prompt.
void TakePrompt(Json& chosen, Json& rejected, Json& prompt, const data::RowNames& names) {
  if (chosen.is_string()) {
    const auto good = chosen.get<std::string>(), bad = rejected.get<std::string>();
    const size_t common = CommonText(good, bad);
    prompt = good.substr(0, common);
    chosen = good.substr(common);
    rejected = bad.substr(common);
    return;
  }
  const size_t common = CommonMessages(chosen, rejected, names);
  if (common == 0) RefusePreference("no \"prompt\", and chosen and rejected begin differently");
  prompt = Json::array();
  for (size_t i = 0; i < common; ++i) prompt.push_back(chosen[i]);
  EraseFirst(chosen, common);
  EraseFirst(rejected, common);
}

bool IsEmpty(const Json& prompt) { return prompt.is_null() || prompt.empty() || prompt == ""; }

// Messages that an answer repeats of its prompt, with a system message that may stand before them.
// Throws RowError where it begins with another question.
size_t Repeated(const Json& answer, const Json& prompt, const data::RowNames& names) {
  const auto asks = {std::string_view("system"), std::string_view("developer"),
                     std::string_view("user")};
  if (IsEmpty(prompt) || answer.empty() || !HasRole(answer[0], asks, names)) return 0;
  const Json asked = prompt.is_string() ? Json::array({MessageOf("user", prompt)}) : prompt;
  size_t before = 0;
  while (before < answer.size() && HasRole(answer[before], {"system", "developer"}, names) &&
         !HasRole(asked[0], {"system", "developer"}, names)) {
    ++before;
  }
  if (CommonMessages(answer, asked, names, before) == asked.size()) return before + asked.size();
  RefusePreference(
      "the answers begin with another question than the prompt: let them have the answer alone, or "
      "leave the prompt out");
}

// A prompt as text beside answers as messages is a question. Puts the column "system" before it.
void Complete(Question& question, bool messages) {
  if (question.prompt.is_string() && messages) {
    question.prompt = Json::array({MessageOf("user", question.prompt)});
  }
  if (question.system.is_null()) return;
  if (!question.prompt.is_array()) {
    question.extras["system"] = question.system;  // refused with the reason
    return;
  }
  const Json system = MessageOf("system", question.system);
  const bool has = !question.prompt.empty() && HasRole(question.prompt[0], {"system"}, {});
  if (has && Comparable(question.prompt[0], {}) != Comparable(system, {})) {
    RefusePreference("a \"system\" beside a conversation that begins with another system message");
  }
  if (!has) question.prompt.insert(question.prompt.begin(), system);
}

Row AnswerTo(const Question& question, const Json& answer, const data::RowNames& names) {
  Json object = question.extras;
  object["prompt"] = question.prompt;
  object["completion"] = question.prompt.is_array() && answer.is_string()
                             ? Json::array({MessageOf("assistant", answer)})
                             : answer;
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
  const bool messages = chosen.is_array();
  if (IsEmpty(question.prompt)) {
    TakePrompt(chosen, rejected, question.prompt, names);
    if (question.prompt == "") {
      RefusePreference("no \"prompt\", and the texts of chosen and rejected have no common start");
    }
  } else if (messages && (question.prompt.is_string() || question.prompt.is_array())) {
    const size_t good = Repeated(chosen, question.prompt, names);
    const size_t bad = Repeated(rejected, question.prompt, names);
    if (good != bad || CommonMessages(chosen, rejected, names) < good) {
      RefusePreference("chosen and rejected do not begin with the same prompt");
    }
    if (good > 0) TakePrompt(chosen, rejected, question.prompt, names);
  }
  Complete(question, messages);
  return {{AnswerTo(question, chosen, names), true}, {AnswerTo(question, rejected, names), false}};
}

// Whether a marked answer is a good one.
bool IsGood(const Json& object) {
  for (const char* key : {"kto_tag", "label"}) {
    if (HasValue(object, key) && object.at(key).is_boolean()) return object.at(key).get<bool>();
  }
  RefusePreference("no \"label\" that says whether the answer is good: true or false");
}

// An answer in a column of its own; null where it is a conversation's last message.
Json AnswerColumn(const Json& object, const data::RowNames& names) {
  for (const char* key : {"completion", "response", "output", "answer"}) {
    if (HasValue(object, key)) return MessageList(object.at(key), names);
  }
  return nullptr;
}

MarkedAnswer MarkedOf(const Json& object, const data::RowNames& names) {
  const bool good = IsGood(object);
  Question question;
  Json answer = AnswerColumn(object, names);
  const bool asked = HasValue(object, "prompt") || !AskedQuestion(object, names).is_null();
  if (asked && !answer.is_null()) {
    question = QuestionOfRow(object, names);
    const bool messages = answer.is_array();
    if (messages && (question.prompt.is_string() || question.prompt.is_array())) {
      const size_t repeated = Repeated(answer, question.prompt, names);
      if (repeated > 0) {
        question.prompt = Json::array();
        for (size_t i = 0; i < repeated; ++i) question.prompt.push_back(answer[i]);
        EraseFirst(answer, repeated);
      }
    }
    Complete(question, messages);
    return {AnswerTo(question, answer, names), good};
  }
  // A conversation: its last message is the answer.
  const bool has_list = std::ranges::any_of(
      std::initializer_list<const char*>{"messages", "conversations", "conversation"},
      [&](const char* key) { return HasValue(object, key); });
  if (!has_list) {
    RefusePreference("a \"label\" without \"prompt\" and \"completion\", and without \"messages\"");
  }
  Json messages = ShareGptMessages(object, names).at("messages");
  if (messages.size() < 2) RefusePreference("a conversation without a question and its answer");
  for (const char* extra : {"tools", "chat_template_kwargs"}) {
    if (HasValue(object, extra)) question.extras[extra] = object.at(extra);
  }
  answer = Json::array({messages.back()});
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

Row ParseChosen(std::string_view line, const data::RowNames& names, data::Form* form) {
  const Json object = ReadRow(line, names, data::Learns::kChosen, form);
  if (*form == data::Form::kPreference) return PairOf(object, names).front().row;
  if (*form != data::Form::kUnpaired) return RowOf(*form, object, names);
  MarkedAnswer answer = MarkedOf(object, names);
  if (!answer.good) throw RowError(RowProblem::kNoAnswer, "its answer is marked as a bad one");
  return std::move(answer.row);
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
