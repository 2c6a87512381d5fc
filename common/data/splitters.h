#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "common/base/status.h"
#include "common/data/row_reader.h"

namespace sft::data {

// Members of an object that may hold its rows as a list.
inline constexpr std::string_view kRowLists[] = {"data", "train", "rows", "examples"};

// Cuts the bytes of a file into rows as they come. Rows are at most `max` bytes.
class Splitter {
 public:
  virtual ~Splitter() = default;
  // False: no more rows are wanted.
  virtual absl::StatusOr<bool> Feed(std::string_view bytes) = 0;
  // The file has ended.
  virtual absl::Status Finish() = 0;
};

std::unique_ptr<Splitter> MakeLineSplitter(int64_t max, const TakeRow& take);
std::unique_ptr<Splitter> MakeJsonSplitter(int64_t max, const TakeRow& take);
// `delimiter` 0: that of the header.
std::unique_ptr<Splitter> MakeTableSplitter(char delimiter, const RowNames& names, int64_t max,
                                            const TakeRow& take);
// `asks`: a text that begins with a row is refused, since it is likely to be misnamed.
std::unique_ptr<Splitter> MakeTextSplitter(bool asks, int64_t max, const TakeRow& take);

}  // namespace sft::data
