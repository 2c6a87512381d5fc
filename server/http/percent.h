#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sft::server {

// "%3A" as ":". Nullopt where a "%" begins no such code, or codes a NUL.
std::optional<std::string> PercentDecoded(std::string_view text);

// Whether a path is all codes that can be read, none of them a NUL, and has no segment "." or ".."
// once they are.
bool IsPlainPath(std::string_view path);

// The names and values of a query, "a=1&b=x+y", in its order. Nullopt for one that cannot be read,
// or has more than 100 of them.
std::optional<std::vector<std::pair<std::string, std::string>>> ReadQuery(std::string_view query);

// The value of a cookie in a Cookie field ("a=1; b=2"). Nullopt: it is not there, or twice with
// different values.
std::optional<std::string> CookieIn(std::string_view field, std::string_view name);

}  // namespace sft::server
