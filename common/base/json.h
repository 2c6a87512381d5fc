#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// JSON from text and to text: the library's parser and writer, compiled once. Neither throws.

namespace sft {

// `is_discarded()` where `text` is not JSON: no object, no array, no string.
nlohmann::json ParseJson(std::string_view text);

// The same with the keys in the order of the text.
nlohmann::ordered_json ParseOrderedJson(std::string_view text);

// In one line, or with `indent` spaces for each level. Bytes that are not UTF-8 come out as U+FFFD.
std::string DumpJson(const nlohmann::json& value, int indent = -1);
std::string DumpJson(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace sft
