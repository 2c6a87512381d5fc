#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// JSON parsing and writing: nlohmann's parser and writer, compiled once. Neither throws. Parsing
// takes time and memory in proportion to the text, whatever it holds, and limits the depth so that
// recursive code (writing, copying, comparing) is safe on the result.

namespace sft {

// The deepest nesting of arrays and objects; deeper text is refused.
inline constexpr int kMaxJsonDepth = 100;

// How the accepted syntax differs from plain JSON.
struct JsonForm {
  bool comments = false;  // // and /* */ comments are skipped
  bool keys_once =
      false;  // a key that appears twice in an object is an error; otherwise its last value counts
};

// Why a text was refused.
struct JsonProblem {
  enum Kind { kSyntax, kDepth, kTwice } kind = kSyntax;
  std::string text;  // at most a few hundred bytes
};

// Parses `text`. The result `is_discarded()` when the text was refused; it is then not an object,
// array or string. `problem` may be null.
nlohmann::json ParseJson(std::string_view text, JsonForm form = {}, JsonProblem* problem = nullptr);

// The same, keeping the keys in the order of the text.
nlohmann::ordered_json ParseOrderedJson(std::string_view text, JsonForm form = {},
                                        JsonProblem* problem = nullptr);

// Writes JSON in one line, or with `indent` spaces per level. Bytes that are not UTF-8 are written
// as U+FFFD.
std::string DumpJson(const nlohmann::json& value, int indent = -1);
std::string DumpJson(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace sft
