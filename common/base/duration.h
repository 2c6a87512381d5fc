#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace sft {

// A whole number, at most nine digits, with s, m, h or d ("90s", "15m"); without a unit: seconds.
// Nothing for any other text.
std::optional<std::chrono::seconds> ParseDuration(std::string_view text);

}  // namespace sft
