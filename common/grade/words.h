#pragma once

#include <string>
#include <string_view>
#include <vector>

// Text as characters, lower case and words: what the metrics of this folder have in common. A byte
// that is not UTF-8 counts as U+FFFD.

namespace sft::grade {

std::u32string Characters(std::string_view text);
std::string Utf8Of(std::u32string_view text);

// As Python's str.lower, but a capital sigma always becomes the sigma of a word's middle.
std::u32string Lower(std::u32string_view text);

// White space as Python's str.isspace has it.
bool IsSpace(char32_t c);
// Letters, digits and "_" of every script, as \w in Python's re. Beyond ASCII all is a letter but
// for the blocks of punctuation, symbols, emoji and spaces.
bool IsWordCharacter(char32_t c);

// The text without white space at both ends.
std::string_view Strip(std::string_view text);
// The runs between white space.
std::vector<std::u32string> SplitAtSpace(std::u32string_view text);

}  // namespace sft::grade
