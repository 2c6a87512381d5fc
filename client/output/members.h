#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/output/json.h"

// Members of JSON that others wrote: what is not there, or of another type, is told and not thrown.

namespace sft::client {

// Null: `object` is no object, or has no such member.
inline const Json* Member(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? &*found : nullptr;
}

// "" for what is no text.
inline std::string TextOf(const Json& object, const char* key) {
  const Json* value = Member(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

inline bool IsNumber(const Json& object, const char* key) {
  const Json* value = Member(object, key);
  return value != nullptr && value->is_number();
}

inline std::optional<double> NumberOf(const Json& object, const char* key) {
  if (!IsNumber(object, key)) return std::nullopt;
  return Member(object, key)->get<double>();
}

// 0 for what is no number.
inline int64_t CountOf(const Json& object, const char* key) {
  return IsNumber(object, key) ? Member(object, key)->get<int64_t>() : 0;
}

}  // namespace sft::client
