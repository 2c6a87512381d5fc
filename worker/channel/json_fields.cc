#include "worker/channel/json_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "common/base/json.h"

namespace sft::channel {
namespace {

std::string Quoted(const std::string& value) { return DumpJson(nlohmann::json(value)); }

}  // namespace

void FieldWriter::Raw(std::string_view key, std::string_view text) {
  if (text_.size() > 1) text_ += ',';
  text_ += '"';
  text_ += key;
  text_ += "\":";
  text_ += text;
}

void FieldWriter::operator()(std::string_view key, const std::string& value) {
  Raw(key, Quoted(value));
}

void FieldWriter::operator()(std::string_view key, double value) {
  if (std::isnan(value)) return Raw(key, "\"nan\"");
  if (std::isinf(value)) return Raw(key, value > 0 ? "\"inf\"" : "\"-inf\"");
  Raw(key, fmt::format("{}", value));
}

void FieldWriter::operator()(std::string_view key, bool value) {
  Raw(key, value ? "true" : "false");
}

void FieldWriter::operator()(std::string_view key, const std::vector<std::string>& value) {
  std::string text = "[";
  for (const std::string& element : value) {
    if (text.size() > 1) text += ',';
    text += Quoted(element);
  }
  Raw(key, text + "]");
}

void FieldWriter::operator()(std::string_view key,
                             const std::map<std::string, std::string>& value) {
  std::string text = "{";
  for (const auto& [name, element] : value) {
    if (text.size() > 1) text += ',';
    text += Quoted(name) + ":" + Quoted(element);
  }
  Raw(key, text + "}");
}

std::string FieldWriter::Take() { return std::exchange(text_, "{") + "}"; }

const nlohmann::json* FieldReader::Find(const char* key) const {
  const auto member = object_.find(key);
  return member == object_.end() ? nullptr : &*member;
}

void FieldReader::Wrong(const char* key, std::string_view expected) {
  if (status_.ok()) status_ = InvalidArgument(fmt::format("{}: expected {}", key, expected));
}

void FieldReader::Adopt(const char* key, const absl::Status& inner) {
  if (status_.ok()) status_ = Annotate(inner, key);
}

void FieldReader::Require(const char* key) {
  if (status_.ok() && Find(key) == nullptr)
    status_ = InvalidArgument(fmt::format("{}: missing", key));
}

void FieldReader::operator()(const char* key, std::string& value) {
  const nlohmann::json* member = Find(key);
  if (member == nullptr) return;
  if (!member->is_string()) return Wrong(key, "a string");
  value = member->get_ref<const std::string&>();
}

void FieldReader::operator()(const char* key, double& value) {
  const nlohmann::json* member = Find(key);
  if (member == nullptr) return;
  if (member->is_number()) {
    value = member->get<double>();
    return;
  }
  const std::string text = member->is_string() ? member->get<std::string>() : "";
  if (text == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (text == "inf") {
    value = std::numeric_limits<double>::infinity();
  } else if (text == "-inf") {
    value = -std::numeric_limits<double>::infinity();
  } else {
    Wrong(key, "a number, \"nan\", \"inf\" or \"-inf\"");
  }
}

void FieldReader::operator()(const char* key, bool& value) {
  const nlohmann::json* member = Find(key);
  if (member == nullptr) return;
  if (!member->is_boolean()) return Wrong(key, "true or false");
  value = member->get<bool>();
}

void FieldReader::operator()(const char* key, std::vector<std::string>& value) {
  const nlohmann::json* member = Find(key);
  if (member == nullptr) return;
  if (!member->is_array()) return Wrong(key, "a list of strings");
  value.clear();
  for (const nlohmann::json& element : *member) {
    if (!element.is_string()) return Wrong(key, "a list of strings");
    value.push_back(element.get<std::string>());
  }
}

void FieldReader::operator()(const char* key, std::map<std::string, std::string>& value) {
  const nlohmann::json* member = Find(key);
  if (member == nullptr) return;
  if (!member->is_object()) return Wrong(key, "an object of strings");
  value.clear();
  for (const auto& [name, element] : member->items()) {
    if (!element.is_string()) return Wrong(key, "an object of strings");
    value[name] = element.get<std::string>();
  }
}

absl::StatusOr<nlohmann::json> ParseObject(std::string_view text, size_t max_bytes,
                                           std::string_view what) {
  if (text.size() > max_bytes) {
    return InvalidArgument(
        fmt::format("{}: {} bytes are more than {}", what, text.size(), max_bytes));
  }
  nlohmann::json object = ParseJson(text);
  if (object.is_discarded()) return InvalidArgument(fmt::format("{}: not valid JSON", what));
  if (!object.is_object()) return InvalidArgument(fmt::format("{}: not a JSON object", what));
  return object;
}

}  // namespace sft::channel
