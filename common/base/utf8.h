#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Text from outside (files, command lines, what processes print) is bytes; what travels in messages
// must be UTF-8.

namespace sft {

// What stands in for bytes that are not UTF-8.
inline constexpr char32_t kReplacementCharacter = 0xfffd;

// Takes the first character off `text`, which must not be empty. Bytes that are not UTF-8 (also
// overlong forms, surrogates, what lies above U+10FFFF) give kReplacementCharacter, one byte each.
// `valid` says which it was.
char32_t TakeCharacter(std::string_view& text, bool& valid);

// Where the first byte stands that is not UTF-8; npos: there is none.
size_t FindInvalidUtf8(std::string_view text);
inline bool IsUtf8(std::string_view text) { return FindInvalidUtf8(text) == text.npos; }

// The first character of a text of one line that a terminal does not show as itself: a control
// character, one that turns the direction of what follows, one that cannot be seen, or a byte that
// is not UTF-8. As "U+202E"; empty: there is none.
std::string FindHidden(std::string_view text);

// The text with "_" in place of each of those.
std::string WithoutHidden(std::string_view text);

// The text with kReplacementCharacter in place of each byte that is not UTF-8.
std::string ToUtf8(std::string_view text);

}  // namespace sft
