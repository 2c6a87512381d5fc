#include <fmt/format.h>
#include <yaml.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <utility>

#include "common/spec/job_file_reader.h"
#include "common/spec/raw_tree.h"

namespace sft::spec {
namespace {

bool IsOneOf(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

size_t DigitsAt(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of("0123456789", at), text.size()) - at;
}

// True for a number as TOML and JSON write it, too: no leading zero, which YAML 1.1 reads as octal.
bool IsNumber(std::string_view text, bool* whole) {
  size_t at = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  const size_t before = DigitsAt(text, at);
  if (before > 1 && text[at] == '0') return false;
  at += before;
  *whole = at == text.size();
  size_t after = 0;
  if (at < text.size() && text[at] == '.') {
    after = DigitsAt(text, at + 1);
    at += 1 + after;
  }
  if (before + after == 0) return false;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    if (++at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    const size_t digits = DigitsAt(text, at);
    if (digits == 0) return false;
    at += digits;
  }
  return at == text.size();
}

template <typename T>
bool ReadNumber(std::string_view text, T* number) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

// An unquoted scalar by YAML 1.2's core schema; what is no number there is text.
Value PlainValue(const std::string& text) {
  if (IsOneOf(text, {"true", "True", "TRUE"})) return true;
  if (IsOneOf(text, {"false", "False", "FALSE"})) return false;
  bool whole = false;
  if (!IsNumber(text, &whole)) return text;
  int64_t integer = 0;
  double number = 0;
  if (whole && ReadNumber(text, &integer)) return integer;
  if (!whole && ReadNumber(text, &number)) return number;
  return text;
}

class YamlReader {
 public:
  explicit YamlReader(std::string_view text) : text_(text) {
    ready_ = yaml_parser_initialize(&parser_) != 0;
    if (!ready_) return;
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()),
                                 text.size());
  }
  ~YamlReader() {
    if (ready_) yaml_parser_delete(&parser_);
  }
  YamlReader(const YamlReader&) = delete;
  YamlReader& operator=(const YamlReader&) = delete;

  std::variant<std::vector<RawEntry>, ReadError> Read() {
    if (!ready_) return ReadError{0, "cannot be read: no memory"};
    for (bool more = true; more;) {
      yaml_event_t event;
      if (yaml_parser_parse(&parser_, &event) == 0) return SyntaxError();
      more = event.type != YAML_STREAM_END_EVENT;
      const bool taken = Take(event);
      yaml_event_delete(&event);
      if (!taken) return tree_.error();
    }
    return tree_.Entries();
  }

 private:
  bool Take(const yaml_event_t& event);
  bool TakeScalar(const yaml_event_t& event, int line);
  // False, with the refusal, for what gives a node its value from elsewhere.
  bool IsOrdinary(const void* anchor, const void* tag, int line);
  // Before a value or a collection: that it is none where a key belongs.
  bool BeginValue(int line);
  // After one: in a table the next scalar is a key.
  void EndValue() {
    if (!levels_.empty() && levels_.back() == kTable) at_key_ = true;
  }
  bool OpenLevel(char kind, int line);
  ReadError SyntaxError() const;

  static constexpr char kTable = '{', kList = '[';
  std::string_view text_;
  yaml_parser_t parser_;
  bool ready_ = false;
  RawTree tree_;
  std::string levels_;  // kTable or kList for each that is open
  bool at_key_ = false;
  int documents_ = 0;
};

bool YamlReader::IsOrdinary(const void* anchor, const void* tag, int line) {
  if (anchor != nullptr) {
    return tree_.Refuse(line,
                        "has an anchor (&name), which is not read; write the value out "
                        "where it is needed");
  }
  if (tag != nullptr) {
    return tree_.Refuse(line,
                        "has a tag (!name), which is not read; write the value without it, "
                        "and text in quotes");
  }
  return true;
}

bool YamlReader::BeginValue(int line) {
  if (!at_key_) return true;
  return tree_.Refuse(line, "has a list or a table as a key; a key is a name");
}

bool YamlReader::OpenLevel(char kind, int line) {
  if (!BeginValue(line)) return false;
  if (!(kind == kTable ? tree_.OpenTable(line) : tree_.OpenList(line))) return false;
  levels_ += kind;
  at_key_ = kind == kTable;
  return true;
}

bool YamlReader::TakeScalar(const yaml_event_t& event, int line) {
  const auto& scalar = event.data.scalar;
  if (!IsOrdinary(scalar.anchor, scalar.tag, line)) return false;
  std::string text(reinterpret_cast<const char*>(scalar.value), scalar.length);
  const bool plain = scalar.style == YAML_PLAIN_SCALAR_STYLE;
  if (at_key_) {
    if (plain && text == "<<") {
      return tree_.Refuse(line, "merges another table (<<), which is not read; write its keys out");
    }
    at_key_ = false;
    return tree_.Key(text, line);
  }
  bool taken = false;
  if (plain && IsOneOf(text, {"", "~", "null", "Null", "NULL"})) {
    taken = tree_.Null(line);
  } else if (plain) {
    Value value = PlainValue(text);
    taken = tree_.Scalar(std::move(value), line, std::move(text));
  } else {
    taken = tree_.Scalar(std::move(text), line);
  }
  EndValue();
  return taken;
}

bool YamlReader::Take(const yaml_event_t& event) {
  const int line = static_cast<int>(event.start_mark.line) + 1;
  switch (event.type) {
    case YAML_DOCUMENT_START_EVENT:
      if (++documents_ == 1) return true;
      return tree_.Refuse(line, "holds several documents (---); a job file is one");
    case YAML_ALIAS_EVENT:
      return tree_.Refuse(line, "has an alias (*name), which is not read; write the value out");
    case YAML_SCALAR_EVENT:
      return TakeScalar(event, line);
    case YAML_MAPPING_START_EVENT:
      return IsOrdinary(event.data.mapping_start.anchor, event.data.mapping_start.tag, line) &&
             OpenLevel(kTable, line);
    case YAML_SEQUENCE_START_EVENT:
      return IsOrdinary(event.data.sequence_start.anchor, event.data.sequence_start.tag, line) &&
             OpenLevel(kList, line);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
      levels_.pop_back();
      at_key_ = false;
      EndValue();
      return tree_.Close();
    default:
      return true;
  }
}

ReadError YamlReader::SyntaxError() const {
  size_t line = parser_.problem_mark.line + 1;
  // What is wrong with the bytes themselves has an offset alone.
  if (parser_.error == YAML_READER_ERROR) {
    const std::string_view before = text_.substr(0, std::min(parser_.problem_offset, text_.size()));
    line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
  }
  std::string message =
      fmt::format("is not YAML: {}", parser_.problem == nullptr ? "no memory" : parser_.problem);
  if (parser_.context != nullptr) {
    message += fmt::format(" ({}, line {})", parser_.context, parser_.context_mark.line + 1);
  }
  return {static_cast<int>(line), std::move(message)};
}

}  // namespace

std::variant<std::vector<RawEntry>, ReadError> ReadYaml(std::string_view text) {
  return YamlReader(text).Read();
}

Value TypedBy(const Field& field, const RawEntry& entry) {
  if (!entry.plain.has_value()) return *entry.value;
  const bool number =
      std::holds_alternative<int64_t>(*entry.value) || std::holds_alternative<double>(*entry.value);
  if (field.type == Type::kString && number) return *entry.plain;
  const std::string choices = "|" + std::string(field.choices) + "|";
  if (field.type == Type::kBool || choices.find("|true|") != choices.npos) {
    // YAML 1.1's other words for the two.
    if (IsOneOf(*entry.plain, {"yes", "Yes", "YES", "on", "On", "ON"})) return true;
    if (IsOneOf(*entry.plain, {"no", "No", "NO", "off", "Off", "OFF"})) return false;
  }
  return *entry.value;
}

}  // namespace sft::spec
