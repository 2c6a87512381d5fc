#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Escaping of text from other parties (names, reasons, logs) for a terminal: it must not move the
// cursor, change colours or break a table.

namespace sft::client {

// On one line: line breaks and tabs become spaces, other control characters become "\x1b".
std::string OneLine(std::string_view text);
// The same, but line breaks and tabs stay.
std::string Lines(std::string_view text);

// Columns that UTF-8 text takes on a terminal: combining marks count 0, wide characters 2.
size_t Columns(std::string_view text);

}  // namespace sft::client
