#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/data/row_form.h"
#include "common/io/file.h"

namespace sft::data {

// The longest row accepted.
inline constexpr int64_t kMaxRowBytes = 16 << 20;

// How rows stand in a file.
enum class Container {
  kLines,  // JSON Lines: an object a line
  kJson,   // one JSON array of objects, or an object that holds it as data, train, rows or examples
  kCsv,    // a header and a row a record (RFC 4180); the delimiter is the header's
  kTsv,
  kText,   // the file is one document
  kTable,  // Parquet or Arrow, told by its first bytes
};
// What a row's number counts in messages: "line", or "row" where there are no lines.
std::string_view PlaceWord(Container container);

// A table by its first bytes, whatever the name; by the ending of the name for .parquet, .arrow,
// .feather, .csv, .tsv, .txt and .md (behind it may stand one of .gz, .zst, .bz2 and .xz), else by
// `head`, the first bytes of the (unpacked) file.
Container ContainerOf(std::string_view name, std::string_view head);

// Whether the file begins as a Parquet or Arrow file.
absl::StatusOr<bool> IsTableFile(const std::string& path);

// What a file was found to be.
struct FileKind {
  Container container = Container::kLines;
  bool packed = false;
};

// How ReadRows looks at a file.
struct ReadOptions {
  const RowNames* names = nullptr;  // which columns of a table hold lists; null: the usual names
  int64_t max_row_bytes = kMaxRowBytes;
  FileKind* kind = nullptr;  // set before the first row is taken; null: nobody asks
};

// Takes the text of a row, JSON as a rule, and the line of the file on which it begins, from 1; the
// number of the row where a file has no lines. The text is valid during the call. Returns false
// when it needs no more rows.
using TakeRow = std::function<absl::StatusOr<bool>(int64_t line, std::string_view row)>;

// Reads the rows of a file from first to last; blank lines are none. `name` is what the file's
// owner calls it. INVALID_ARGUMENT, with the line where there is one, for what is not of its
// container's form; errors of `take` are passed on.
absl::Status ReadRows(const std::string& path, std::string_view name, const ReadOptions& options,
                      const TakeRow& take);
// The same for a file that is open.
absl::Status ReadRows(io::UniqueFd fd, std::string_view name, const ReadOptions& options,
                      const TakeRow& take);

}  // namespace sft::data
