#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Escaping of text from other parties before it reaches a terminal, a log or a list: it must not
// move the cursor, change colours, hide what stands beside it or fill the screen.

namespace sft {

// True for C0 and C1 controls, for the marks that change the direction of text, and for characters
// that cannot be seen. (Joiners can, in what they join: letters of Persian and Hindi, emoji.)
bool IsControl(char32_t character);
// True for valid UTF-8 without such characters.
bool IsPlain(std::string_view text);

// Writes control characters, and bytes that are not UTF-8, as "\x1b". Line breaks and tabs stay as
// they are with `keep_breaks`, and become spaces otherwise.
std::string Escaped(std::string_view text, bool keep_breaks);
// The same on one line, cut to about `most` bytes; the text then says that it was cut.
std::string Plain(std::string_view text, size_t most);
// The text, or its beginning followed by its length; never cut within a character.
std::string Shortened(std::string_view text, size_t most);

// As one word of a shell's command line: in quotes where it has to be.
std::string ShellWord(std::string_view text);

}  // namespace sft
