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
  most_work_ = std::max(most_, limits.free_work);
  most_ = std::max(most_, limits.free_bytes);
}

absl::Status RowCounter::Add(std::string_view row) {
  const auto size = static_cast<int64_t>(row.size());
  if (size > limits_.max_row_bytes) return TooLong();
  if (spent()) return TooMuchWork();
  made_ += std::max(size, kLeastRow);
  if (made_ <= most_) return absl::OkStatus();
  return InvalidArgument(fmt::format(
      "the rows up to here take more than {}, too much for a file of this size", BytesText(most_)));
}

absl::Status RowCounter::TooLong() const {
  return InvalidArgument(fmt::format("longer than {} MiB", limits_.max_row_bytes >> 20));
}

absl::Status RowCounter::TooMuchWork() const {
  return InvalidArgument(
      "the rows up to here take too much work for a file of this size: most of their columns are "
      "empty, or the same bytes stand for many; write the table anew, without empty columns");
}

absl::Status NamesTooLong() {
  return InvalidArgument(fmt::format(
      "the names of its columns are too long: a name, with those of the groups around it, has at "
      "most {}, all together {}",
      BytesText(kMostNameBytes), BytesText(kMostAllNameBytes)));
}

}  // namespace sft::columnar
