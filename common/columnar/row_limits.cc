#include "common/columnar/row_limits.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/bytes.h"

namespace sft::columnar {
namespace {

// What a row counts at least, however short its text.
constexpr int64_t kLeastRow = 64;

}  // namespace

RowCounter::RowCounter(const RowLimits& limits, int64_t file_size) : limits_(limits) {
  if (__builtin_mul_overflow(file_size, limits.max_ratio, &most_)) most_ = INT64_MAX;
  most_ = std::max(most_, limits.free_bytes);
}

absl::Status RowCounter::Add(std::string_view row) {
  const auto size = static_cast<int64_t>(row.size());
  if (size > limits_.max_row_bytes) {
    return InvalidArgument(fmt::format("longer than {} MiB", limits_.max_row_bytes >> 20));
  }
  made_ += std::max(size, kLeastRow);
  if (made_ <= most_) return absl::OkStatus();
  return InvalidArgument(fmt::format(
      "the rows up to here take more than {}, too much for a file of this size", BytesText(most_)));
}

}  // namespace sft::columnar
