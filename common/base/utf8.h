#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// UTF-8 checks. Text from outside (files, command lines, output of processes) is bytes; text in
// messages must be UTF-8.

namespace sft {

// Replaces bytes that are not UTF-8.
inline constexpr char32_t kReplacementCharacter = 0xfffd;

// Removes and returns the first character of `text`, which must not be empty. A byte that is not
// UTF-8 (overlong forms, surrogates and code points above U+10FFFF included) gives
// kReplacementCharacter and clears `valid`; one byte is consumed each time.
char32_t TakeCharacter(std::string_view& text, bool& valid);

// Bytes at the end of `text` that begin a character and do not end it; 0 if it ends with a whole
// one.
size_t BytesOfBegunCharacter(std::string_view text);

// The position of the first byte that is not UTF-8; npos if there is none.
size_t FindInvalidUtf8(std::string_view text);
inline bool IsUtf8(std::string_view text) { return FindInvalidUtf8(text) == text.npos; }

// The first character of a one-line text that a terminal does not show as itself: a control
// character, one that changes the direction of text, an invisible one, or a byte that is not UTF-8.
// Written as "U+202E"; empty if there is none.
std::string FindHidden(std::string_view text);

// The text with "_" in place of each such character.
std::string WithoutHidden(std::string_view text);

// The text with kReplacementCharacter in place of each byte that is not UTF-8.
std::string ToUtf8(std::string_view text);

}  // namespace sft
