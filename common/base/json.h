#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// JSON from text and to text: the library's parser and writer, compiled once. Neither throws.
// Reading takes time and memory in proportion to the text, whatever stands in it, and what was read
// is shallow enough for everything that walks it by recursion (writing, copying, comparing).

namespace sft {

// Arrays and objects within each other; a deeper text is refused.
inline constexpr int kMaxJsonDepth = 100;

// What is read beyond plain JSON, or refused.
struct JsonForm {
  bool comments = false;  // // and /* */ are skipped
  bool keys_once =
      false;  // a key that stands twice in an object is a fault; else its last value counts
};

// Why a text was not taken.
struct JsonProblem {
  enum Kind { kSyntax, kDepth, kTwice } kind = kSyntax;
  std::string text;  // at most some hundred bytes
};

// `is_discarded()` where `text` was not taken: no object, no array, no string. `problem` may be
// null.
nlohmann::json ParseJson(std::string_view text, JsonForm form = {}, JsonProblem* problem = nullptr);

// The same with the keys in the order of the text.
nlohmann::ordered_json ParseOrderedJson(std::string_view text, JsonForm form = {},
                                        JsonProblem* problem = nullptr);

// In one line, or with `indent` spaces for each level. Bytes that are not UTF-8 come out as U+FFFD.
std::string DumpJson(const nlohmann::json& value, int indent = -1);
std::string DumpJson(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace sft
