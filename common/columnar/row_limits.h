#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "common/base/status.h"

namespace sft::columnar {

// Takes the JSON object of a row, and which one it is, from 1. The text is valid during the call.
// Returns false when it needs no more rows.
using TakeObject = std::function<absl::StatusOr<bool>(int64_t row, std::string_view object)>;

// What the rows of a table may grow to.
struct RowLimits {
  int64_t max_row_bytes = 0;
  // All rows: the larger of a fixed size and of so many times the file's.
  int64_t free_bytes = int64_t{1} << 30;
  int64_t max_ratio = 500;
  // Work, likewise: files whose rows take long to make have little text.
  int64_t free_work = int64_t{1} << 30;
};

// Names of columns are written in each row, and paths for each column: both have limits.
constexpr size_t kMostNameBytes = 64 << 10;
constexpr int64_t kMostAllNameBytes = 16 << 20;
absl::Status NamesTooLong();

// Counts the rows of one file, and the work that they are, against their limits. A unit of work is
// a column of a row that is looked at, or a byte that is unpacked or makes no text.
class RowCounter {
 public:
  RowCounter(const RowLimits& limits, int64_t file_size);
  // INVALID_ARGUMENT for a row that is too long, or one too many, or when the work was too much.
  absl::Status Add(std::string_view row);
  void Work(int64_t units) { work_ += units; }
  // Whether the work is too much: what makes a row stops.
  bool spent() const { return work_ > most_work_; }
  int64_t max_row_bytes() const { return limits_.max_row_bytes; }
  absl::Status TooLong() const;
  absl::Status TooMuchWork() const;

 private:
  const RowLimits limits_;
  int64_t most_ = 0, made_ = 0;
  int64_t most_work_ = 0, work_ = 0;
};

}  // namespace sft::columnar
