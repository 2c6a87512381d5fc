#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

// One `Fields(visitor, record)` function per record drives both directions: FieldWriter makes JSON
// text, FieldReader fills the record from a parsed object. Private to worker/channel.

namespace sft::channel {

// Writes the members of one object in the order of the calls. Doubles are the shortest text that
// reads back equal; NaN and infinities become the strings "nan", "inf", "-inf". Bytes that are not
// UTF-8 become U+FFFD.
class FieldWriter {
 public:
  void operator()(std::string_view key, const std::string& value);
  void operator()(std::string_view key, double value);
  void operator()(std::string_view key, bool value);
  void operator()(std::string_view key, const std::vector<std::string>& value);
  void operator()(std::string_view key, const std::map<std::string, std::string>& value);
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  void operator()(std::string_view key, T value) {
    Raw(key, std::to_string(value));
  }
  template <typename Record>
  void Object(std::string_view key, Record& record) {
    FieldWriter inner;
    Fields(inner, record);
    Raw(key, inner.Take());
  }
  template <typename Record>
  void List(std::string_view key, std::vector<Record>& records) {
    std::string text = "[";
    for (Record& record : records) {
      if (text.size() > 1) text += ',';
      FieldWriter inner;
      Fields(inner, record);
      text += inner.Take();
    }
    Raw(key, text + "]");
  }
  // Most lines have none of it.
  template <typename Record>
  void ListIfAny(std::string_view key, std::vector<Record>& records) {
    if (!records.empty()) List(key, records);
  }
  // Returns the whole object; the writer is empty afterwards.
  std::string Take();

 private:
  void Raw(std::string_view key, std::string_view text);
  std::string text_ = "{";
};

// Fills a record from an object: absent members keep their value, unknown ones are ignored, a
// member of a wrong type or range is the error of status() (the first one).
class FieldReader {
 public:
  // `object` is borrowed for the life of the reader.
  explicit FieldReader(const nlohmann::json& object) : object_(object) {}

  void operator()(const char* key, std::string& value);
  void operator()(const char* key, double& value);
  void operator()(const char* key, bool& value);
  void operator()(const char* key, std::vector<std::string>& value);
  void operator()(const char* key, std::map<std::string, std::string>& value);
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  void operator()(const char* key, T& value) {
    const nlohmann::json* member = Find(key);
    if (member == nullptr) return;
    if (member->is_number_unsigned()) {
      const auto number = member->get<uint64_t>();
      if (number <= static_cast<uint64_t>(std::numeric_limits<T>::max())) {
        value = static_cast<T>(number);
        return;
      }
    } else if (member->is_number_integer()) {
      const auto number = member->get<int64_t>();
      if (std::in_range<T>(number)) {
        value = static_cast<T>(number);
        return;
      }
    }
    Wrong(key, "an integer in range");
  }
  template <typename Record>
  void Object(const char* key, Record& record) {
    const nlohmann::json* member = Find(key);
    if (member == nullptr) return;
    if (!member->is_object()) return Wrong(key, "an object");
    FieldReader inner(*member);
    Fields(inner, record);
    Adopt(key, inner.status());
  }
  template <typename Record>
  void List(const char* key, std::vector<Record>& records) {
    const nlohmann::json* member = Find(key);
    if (member == nullptr) return;
    if (!member->is_array()) return Wrong(key, "a list");
    for (const nlohmann::json& element : *member) {
      if (!element.is_object()) return Wrong(key, "a list of objects");
      FieldReader inner(element);
      Fields(inner, records.emplace_back());
      Adopt(key, inner.status());
    }
  }
  template <typename Record>
  void ListIfAny(const char* key, std::vector<Record>& records) {
    List(key, records);
  }
  // Sets an error unless the member exists.
  void Require(const char* key);
  const absl::Status& status() const { return status_; }

 private:
  const nlohmann::json* Find(const char* key) const;
  void Wrong(const char* key, std::string_view expected);
  void Adopt(const char* key, const absl::Status& inner);

  const nlohmann::json& object_;
  absl::Status status_;
};

// Parses the object in `text`. InvalidArgument when it is not JSON, not an object, or longer than
// `max_bytes`; `what` names the text in the message.
absl::StatusOr<nlohmann::json> ParseObject(std::string_view text, size_t max_bytes,
                                           std::string_view what);

}  // namespace sft::channel
