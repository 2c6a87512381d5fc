#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Text that others wrote (names, reasons, logs) on its way to a terminal: it must not move the
// cursor, change colours or break a table.

namespace sft::client {

// On one line: line breaks and tabs become spaces, other control characters "\x1b".
std::string OneLine(std::string_view text);
// The same, but its line breaks and tabs stay.
std::string Lines(std::string_view text);

// Columns that UTF-8 text takes on a terminal: none for combining marks, two for wide characters.
size_t Columns(std::string_view text);

}  // namespace sft::client
