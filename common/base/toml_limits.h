#pragma once

#include <optional>
#include <string>
#include <string_view>

// What a TOML text may hold before toml++ sees it. That parser makes and destroys nested tables by
// recursion, looks through lists of all tables for each key, and limits nothing but brackets.

namespace sft {

inline constexpr int kMaxTomlParts = 16;       // of one key or header: a.b.c has three
inline constexpr int kMaxTomlBrackets = 8;     // open at once
inline constexpr int kMaxTomlNameBytes = 256;  // of one key or header, all parts together
inline constexpr int kMaxTomlNames = 8192;     // parts of all keys and headers together

// What is too much, and where.
struct TomlExcess {
  int line = 0;
  std::string message;  // "has a key of ..."
};

// In one pass that recurses nowhere. A text that is no TOML may pass: the parser will say so.
std::optional<TomlExcess> FindTomlExcess(std::string_view text);

}  // namespace sft
