#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/columnar/arrow_field.h"
#include "common/columnar/flat_table.h"
#include "common/columnar/row_limits.h"

namespace sft::columnar {

// The values of a field in one batch; its buffers are views into the batch's body.
struct ArrowColumn {
  const ArrowField* field = nullptr;
  int64_t length = 0;
  std::string_view valid;  // a bit a value; empty: all are there
  std::string_view offsets, data;
  std::vector<ArrowColumn> children;
  const ArrowColumn* dictionary = nullptr;
};

// One batch of rows, or of a dictionary's values, with the bytes that it is made of.
class ArrowBatch {
 public:
  // `batch` is a RecordBatch; `body` its bytes. INVALID_ARGUMENT when it is damaged.
  using Dictionaries = std::map<int64_t, std::unique_ptr<ArrowBatch>>;
  static absl::StatusOr<std::unique_ptr<ArrowBatch>> Make(const std::vector<ArrowField>& fields,
                                                          const FlatTable& batch, std::string body,
                                                          const Dictionaries& dictionaries,
                                                          int64_t most_bytes);
  int64_t rows() const { return rows_; }
  int64_t bytes() const { return bytes_; }
  // Appends the row as a JSON object, and counts what it takes to make, but not the row.
  // INVALID_ARGUMENT when it is too long, the batch is damaged there, or a text is not UTF-8.
  absl::Status AppendRow(int64_t row, RowCounter& counter, std::string& out) const;
  const std::vector<ArrowColumn>& columns() const { return columns_; }

 private:
  class Maker;
  int64_t rows_ = 0, bytes_ = 0;
  std::string body_;
  std::vector<std::unique_ptr<std::string>> unpacked_;
  std::vector<ArrowColumn> columns_;
};

}  // namespace sft::columnar
