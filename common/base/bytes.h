#pragma once

#include <cstdint>
#include <string>

namespace sft {

// Formats a size for people, in the largest unit that leaves something before the point: "950 B",
// "1.25 kB", "12.3 MB", "4.50 GB" (10^9 bytes).
std::string BytesText(int64_t bytes);

}  // namespace sft
