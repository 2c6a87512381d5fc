#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Text that others wrote on its way to a person's terminal, a log or a list: it must not move the
// cursor, change colours, hide what stands beside it or fill the screen.

namespace sft {

// C0 and C1 controls, and the marks that turn the direction of what follows.
bool IsControl(char32_t character);
// UTF-8 without such characters.
bool IsPlain(std::string_view text);

// Control characters, and bytes that are not UTF-8, as "\x1b"; line breaks and tabs stay as they
// are where `keep_breaks`, and become spaces otherwise.
std::string Escaped(std::string_view text, bool keep_breaks);
// The same on one line, and cut to about `most` bytes, which it then says.
std::string Plain(std::string_view text, size_t most);
// The text, or its beginning and how long it was; never cut within a character.
std::string Shortened(std::string_view text, size_t most);

}  // namespace sft
