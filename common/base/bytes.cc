#include "common/base/bytes.h"

#include <fmt/format.h>

namespace sft {

std::string BytesText(int64_t bytes) {
  const double sign = bytes < 0 ? -1 : 1;
  double value = sign * static_cast<double>(bytes);
  if (value < 1000) return fmt::format("{} B", bytes);
  const char* unit = "B";
  for (const char* next : {"kB", "MB", "GB", "TB", "PB"}) {
    if (value < 1000) break;
    value /= 1000;
    unit = next;
  }
  return value < 10 ? fmt::format("{:.2f} {}", sign * value, unit)
                    : fmt::format("{:.1f} {}", sign * value, unit);
}

}  // namespace sft
