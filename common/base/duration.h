#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace sft {

// Parses a whole number of at most nine digits followed by s, m, h or d ("90s", "15m"); without a
// unit it counts seconds. Nullopt for any other text.
std::optional<std::chrono::seconds> ParseDuration(std::string_view text);

// Formats whole seconds in the largest unit, up to hours, that needs no fraction: "90s", "15m",
// "2h".
std::string DurationText(std::chrono::microseconds duration);

// Any interval, as a fraction where it is none of whole seconds.
inline double SecondsOf(std::chrono::duration<double> interval) { return interval.count(); }

}  // namespace sft
