#include "common/base/duration.h"

#include <fmt/format.h>

namespace sft {

std::optional<std::chrono::seconds> ParseDuration(std::string_view text) {
  size_t used = 0;
  int64_t value = 0;
  while (used < text.size() && used < 9 && text[used] >= '0' && text[used] <= '9') {
    value = value * 10 + (text[used++] - '0');
  }
  const std::string_view unit = text.substr(used);
  const int64_t scale = unit.empty() || unit == "s" ? 1
                        : unit == "m"               ? 60
                        : unit == "h"               ? 3600
                        : unit == "d"               ? 86400
                                                    : 0;
  if (used == 0 || scale == 0) return std::nullopt;
  return std::chrono::seconds(value * scale);
}

std::string DurationText(std::chrono::microseconds duration) {
  const int64_t seconds = duration.count() / 1'000'000;
  if (seconds == 0 || seconds % 60 != 0) return fmt::format("{}s", seconds);
  return seconds % 3600 == 0 ? fmt::format("{}h", seconds / 3600)
                             : fmt::format("{}m", seconds / 60);
}

}  // namespace sft
