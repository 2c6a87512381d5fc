#include "common/spec/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstddef>

#include "common/base/duration.h"
#include "common/base/status.h"
#include "common/base/utf8.h"

namespace sft::spec {
namespace {

std::string_view Trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())))
    text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())))
    text.remove_suffix(1);
  return text;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

template <typename T>
bool ParseNumber(std::string_view text, T* number) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

std::string Number(double value) {
  return std::abs(value) < 1e15 && value == std::floor(value)
             ? fmt::format("{}", static_cast<int64_t>(value))
             : fmt::format("{}", value);
}

// Bounds that only keep arithmetic safe do not help a reader.
bool ShowsMax(const Field& field) { return field.max < 1e5; }

std::string Range(const Field& field) {
  if (field.type == Type::kDuration) return fmt::format(", at least {}s", Number(field.min));
  const bool low = std::isfinite(field.min);
  const bool shown_high = ShowsMax(field);
  if (low && field.above_min) {
    return shown_high
               ? fmt::format(" above {} and at most {}", Number(field.min), Number(field.max))
               : fmt::format(" above {}", Number(field.min));
  }
  if (low && shown_high) return fmt::format(" from {} to {}", Number(field.min), Number(field.max));
  if (low) return fmt::format(", at least {}", Number(field.min));
  return "";
}

absl::Status Wrong(const Field& field, std::string_view got) {
  return InvalidArgument(fmt::format("must be {}, but is {}", Expectation(field), got));
}

std::string Quoted(const Value& value) {
  return std::holds_alternative<std::string>(value) ? fmt::format("\"{}\"", ToText(value))
                                                    : ToText(value);
}

// Parses a list as TOML writes it, ["a", "b"], or as a,b.
std::vector<std::string> ParseList(std::string_view text) {
  text = Trim(text);
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<std::string> items;
  for (std::string_view item : SplitWords(text, ',')) {
    item = Trim(item);
    const bool quoted = item.size() >= 2 && (item.front() == '"' || item.front() == '\'') &&
                        item.front() == item.back();
    if (quoted) item = item.substr(1, item.size() - 2);
    if (!item.empty()) items.emplace_back(item);
  }
  return items;
}

// Replaces a synonym of a choice by the choice; other text is returned as it is.
std::string Canonical(const Field& field, const std::string& text) {
  for (std::string_view pair : SplitWords(field.synonyms, '|')) {
    const size_t equals = pair.find('=');
    if (Lower(text) == Lower(pair.substr(0, equals))) return std::string(pair.substr(equals + 1));
  }
  for (std::string_view choice : SplitWords(field.choices, '|')) {
    if (Lower(text) == Lower(choice)) return std::string(choice);
  }
  return text;
}

// The bool that a word stands for; other text is returned as it is.
Value BoolOf(const Field& field, const std::string& word) {
  const std::string meaning = Canonical(field, word);
  if (meaning == word) return word;
  return meaning == "true";
}

absl::Status CheckRange(const Field& field, double number, std::string_view text) {
  const bool low = field.above_min ? number > field.min : number >= field.min;
  if (!std::isfinite(number) || !low || number > field.max) {
    if (std::isfinite(number) && number > field.max && !ShowsMax(field)) {
      return InvalidArgument(fmt::format("must be {} (at most {}), but is {}", Expectation(field),
                                         Number(field.max), text));
    }
    return Wrong(field, text);
  }
  return absl::OkStatus();
}

// Texts are shown in lists, events and on command lines: they must not contain invisible
// characters.
absl::Status CheckText(const Field& field, const std::string& text) {
  if (field.is_text) {
    if (text.find('\0') == text.npos && IsUtf8(text)) return absl::OkStatus();
    return InvalidArgument("holds a NUL byte or bytes that are not UTF-8");
  }
  const std::string hidden = FindHidden(text);
  if (hidden.empty()) return absl::OkStatus();
  return InvalidArgument(fmt::format(
      "holds {}, which is a control character or cannot be seen; leave it out", hidden));
}

absl::Status CheckList(const Field& field, const std::vector<std::string>& items) {
  if (items.empty() && !field.may_be_empty) {
    return InvalidArgument("must name at least one item, but is empty");
  }
  if (items.size() > MostItems(field)) {
    return InvalidArgument(
        fmt::format("has {} items; at most {} are taken", items.size(), MostItems(field)));
  }
  for (const std::string& item : items) SFT_RETURN_IF_ERROR(CheckText(field, item));
  return absl::OkStatus();
}

// A bare number is refused because it has no unit.
absl::StatusOr<Value> CheckDuration(const Field& field, const Value& value) {
  const std::string text = ToText(value);
  const bool bare = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  if (bare && text.find_first_not_of('0') != text.npos) {
    return InvalidArgument(fmt::format(
        "must be {}, but is {} without a unit; write \"{}h\" for hours or \"{}s\" for seconds",
        Expectation(field), Quoted(value), text, text));
  }
  const auto duration = std::holds_alternative<bool>(value) ? std::nullopt : ParseDuration(text);
  if (!duration.has_value()) return Wrong(field, Quoted(value));
  SFT_RETURN_IF_ERROR(CheckRange(field, static_cast<double>(duration->count()), Quoted(value)));
  return bare ? Value("0s") : value;
}

bool IsPlanned(const Field& field, const Value& value) {
  return field.plans_auto && value == Value(int64_t{0});
}

absl::Status CheckSupported(const Field& field, const Value& value) {
  if (field.supported.empty()) return absl::OkStatus();
  const std::string text = ToText(value);
  for (std::string_view word : SplitWords(field.supported, '|')) {
    if (word == text) return absl::OkStatus();
  }
  return InvalidArgument(field.refusal);
}

}  // namespace

std::string_view TypeName(Type type) {
  switch (type) {
    case Type::kString:
      return "a string";
    case Type::kInt:
      return "a whole number";
    case Type::kFloat:
      return "a number";
    case Type::kBool:
      return "true or false";
    case Type::kChoice:
      return "a string";
    case Type::kList:
      return "a list of strings";
    case Type::kDuration:
      return "a duration (\"90s\", \"15m\", \"2h\")";
  }
  return "";
}

std::string_view TypeNameOf(const Value& value) {
  static constexpr std::string_view kNames[] = {"true or false", "a whole number", "a number",
                                                "a string", "a list of strings"};
  return kNames[value.index()];
}

std::string ToText(const Value& value) {
  struct Visitor {
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(int64_t i) const { return fmt::format("{}", i); }
    std::string operator()(double d) const { return fmt::format("{}", d); }
    std::string operator()(const std::string& s) const { return s; }
    std::string operator()(const std::vector<std::string>& list) const {
      return fmt::format("{}", fmt::join(list, ","));
    }
  };
  return std::visit(Visitor(), value);
}

std::string ToText(const Field& field, const Value& value) {
  return IsPlanned(field, value) ? "auto" : ToText(value);
}

std::string Expectation(const Field& field) {
  if (field.type != Type::kChoice) {
    std::string words;
    for (std::string_view pair : SplitWords(field.synonyms, '|')) {
      words += fmt::format(", or \"{}\"", pair.substr(0, pair.find('=')));
    }
    return fmt::format("{}{}{}{}", TypeName(field.type), Range(field), words,
                       field.plans_auto ? ", or \"auto\"" : "");
  }
  std::string list;
  const std::vector<std::string_view> choices = SplitWords(field.choices, '|');
  for (size_t i = 0; i < choices.size(); ++i) {
    list += fmt::format("{}\"{}\"",
                        i == 0                    ? ""
                        : i + 1 == choices.size() ? " or "
                                                  : ", ",
                        choices[i]);
  }
  return list;
}

size_t MostItems(const Field& field) {
  constexpr double kMost = 1000;
  return static_cast<size_t>(std::min(field.max, kMost));
}

bool LeavesOut(const Field& field, const Value& value) {
  const std::string* text = std::get_if<std::string>(&value);
  return field.auto_derives && text != nullptr && *text == "auto";
}

bool IsNoted(const Field& field, const Value& value) {
  const std::string* text = std::get_if<std::string>(&value);
  if (text == nullptr || field.noted_words.empty()) return false;
  const std::string word = Lower(Trim(*text));
  const auto words = SplitWords(field.noted_words, '|');
  return std::find(words.begin(), words.end(), word) != words.end();
}

absl::StatusOr<Value> ParseText(const Field& field, std::string_view text) {
  const std::string_view trimmed = Trim(text);
  if (field.plans_auto && trimmed == "auto") return Value(int64_t{0});
  switch (field.type) {
    case Type::kBool: {
      const std::string lower = Lower(trimmed);
      if (lower == "true" || lower == "1" || lower == "yes" || lower == "on") {
        return Check(field, Value(true));
      }
      if (lower == "false" || lower == "0" || lower == "no" || lower == "off") {
        return Check(field, Value(false));
      }
      return Check(field, Value(std::string(trimmed)));
    }
    case Type::kInt: {
      int64_t number = 0;
      if (ParseNumber(trimmed, &number)) return Check(field, Value(number));
      return Wrong(field, fmt::format("\"{}\"", trimmed));
    }
    case Type::kFloat: {
      double number = 0;
      if (ParseNumber(trimmed, &number)) return Check(field, Value(number));
      return Wrong(field, fmt::format("\"{}\"", trimmed));
    }
    case Type::kList:
      return Check(field, Value(ParseList(trimmed)));
    case Type::kChoice:
    case Type::kDuration:
      return Check(field, Value(std::string(trimmed)));
    case Type::kString:
      return Check(field, Value(std::string(text)));
  }
  return Internal("unknown type of key");
}

absl::StatusOr<Value> Check(const Field& field, Value value) {
  const std::string* word = std::get_if<std::string>(&value);
  if (word != nullptr && field.plans_auto && *word == "auto") return Value(int64_t{0});
  if (field.type == Type::kFloat && std::holds_alternative<int64_t>(value)) {
    value = static_cast<double>(std::get<int64_t>(value));
  }
  switch (field.type) {
    case Type::kBool:
      if (word != nullptr) value = BoolOf(field, *word);
      if (!std::holds_alternative<bool>(value)) {
        return Wrong(field, fmt::format("{} ({})", Quoted(value), TypeNameOf(value)));
      }
      break;
    case Type::kInt:
      if (!std::holds_alternative<int64_t>(value)) return Wrong(field, Quoted(value));
      SFT_RETURN_IF_ERROR(
          CheckRange(field, static_cast<double>(std::get<int64_t>(value)), ToText(value)));
      break;
    case Type::kFloat:
      if (!std::holds_alternative<double>(value)) return Wrong(field, Quoted(value));
      SFT_RETURN_IF_ERROR(CheckRange(field, std::get<double>(value), ToText(value)));
      break;
    case Type::kString:
      if (field.takes_number &&
          (std::holds_alternative<int64_t>(value) || std::holds_alternative<double>(value))) {
        value = ToText(value);
      }
      if (!std::holds_alternative<std::string>(value)) return Wrong(field, Quoted(value));
      SFT_RETURN_IF_ERROR(CheckText(field, std::get<std::string>(value)));
      break;
    case Type::kDuration: {
      SFT_ASSIGN_OR_RETURN(value, CheckDuration(field, value));
      break;
    }
    case Type::kChoice: {
      const auto choices = SplitWords(field.choices, '|');
      // true stands for itself where it is one of the words.
      if (std::holds_alternative<bool>(value) &&
          std::find(choices.begin(), choices.end(), ToText(value)) != choices.end()) {
        value = ToText(value);
      }
      if (!std::holds_alternative<std::string>(value)) return Wrong(field, Quoted(value));
      const std::string text = Canonical(field, std::get<std::string>(value));
      if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
        return Wrong(field, fmt::format("\"{}\"", text));
      }
      value = text;
      break;
    }
    case Type::kList:
      // A single name may stand for a list of one.
      if (auto* one = std::get_if<std::string>(&value)) value = ParseList(*one);
      if (!std::holds_alternative<std::vector<std::string>>(value)) {
        return Wrong(field, Quoted(value));
      }
      SFT_RETURN_IF_ERROR(CheckList(field, std::get<std::vector<std::string>>(value)));
      break;
  }
  SFT_RETURN_IF_ERROR(CheckSupported(field, value));
  return value;
}

}  // namespace sft::spec
