#pragma once

#include <optional>
#include <string>
#include <string_view>

// Limits on a TOML text, checked before toml++ parses it. That parser builds and destroys nested
// tables by recursion, searches lists of all tables for each key, and limits only the nesting of
// brackets.

namespace sft {

inline constexpr int kMaxTomlParts = 16;       // of one key or header: a.b.c has three
inline constexpr int kMaxTomlBrackets = 8;     // open at once
inline constexpr int kMaxTomlNameBytes = 256;  // of one key or header, all parts together
inline constexpr int kMaxTomlNames = 8192;     // parts of all keys and headers together

// Which limit a text exceeds, and where.
struct TomlExcess {
  int line = 0;
  std::string message;  // "has a key of ..."
};

// Checks the limits in one pass without recursion. Text that is not TOML may pass: the parser
// reports it.
std::optional<TomlExcess> FindTomlExcess(std::string_view text);

}  // namespace sft
