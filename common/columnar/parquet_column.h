#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/columnar/page_values.h"
#include "common/columnar/parquet_schema.h"
#include "common/columnar/row_limits.h"
#include "common/columnar/thrift.h"

namespace sft::columnar {

// The bytes that the pages in memory take, over all columns of a file.
struct PageMemory {
  RowCounter& counter;  // of what is unpacked
  int64_t used = 0;
  int64_t most = int64_t{512} << 20;
};

// Reads one column of a row group from first to last, a page in memory at a time.
class ColumnReader {
 public:
  ColumnReader(int fd, std::string path, const Leaf& leaf, const Chunk& chunk, PageMemory& memory);
  ~ColumnReader();
  ColumnReader(const ColumnReader&) = delete;
  ColumnReader& operator=(const ColumnReader&) = delete;

  // Goes to the next place. Behind the last both levels are 0; status() tells of what is damaged.
  void Next();
  // Levels of the place that the column stands at.
  int definition() const { return definition_; }
  int repetition() const { return repetition_; }
  // The value at a place whose definition is the leaf's greatest. Valid until Next.
  const Value& value() const { return value_; }
  const Leaf& leaf() const { return leaf_; }
  // Whether Next has gone behind the last place.
  bool at_end() const { return at_end_; }
  // INVALID_ARGUMENT names the column.
  const absl::Status& status() const { return status_; }

 private:
  struct Header {
    int type = -1;
    int64_t unpacked = 0, packed = 0, crc = -1, values = 0, nulls = 0, rows = 0;
    int encoding = 0, levels_encoding = 3;
    int64_t definition_bytes = 0, repetition_bytes = 0;
    bool is_packed = true;
  };

  static Header ReadHeader(ThriftReader& in);
  absl::Status LoadHeader(Header& header);
  absl::Status LoadBody(const Header& header, std::string& body);
  absl::Status LoadPage();
  absl::Status LoadDictionary(const Header& header);
  absl::Status OpenData(const Header& header);
  absl::Status OpenPage(const Header& header, std::string_view& bytes);
  absl::Status OpenPageV2(const Header& header, std::string_view& bytes);
  absl::Status OpenLevels(const Header& header, std::string_view& bytes);
  absl::Status Unpack(std::string_view packed, size_t size, std::string& out);
  absl::Status Charge(int64_t bytes, int64_t& charged);
  absl::Status Damaged(std::string_view what) const;
  void End(absl::Status status);

  const int fd_;
  const std::string path_;
  const Leaf& leaf_;
  const Chunk chunk_;
  PageMemory& memory_;
  int64_t at_ = 0;    // in the chunk
  int64_t left_ = 0;  // places of the chunk that no page had yet
  int64_t page_left_ = 0;
  std::string page_, dictionary_bytes_;
  int64_t page_charge_ = 0, dictionary_charge_ = 0;
  std::vector<Value> dictionary_;
  bool has_dictionary_ = false;
  RunReader definitions_, repetitions_;
  PageValues values_;
  int definition_ = 0, repetition_ = 0;
  Value value_;
  bool at_end_ = false;
  absl::Status status_;
};

}  // namespace sft::columnar
