#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/columnar/json_text.h"
#include "common/columnar/parquet_schema.h"

namespace sft::columnar {

// Numbers of a fixed count of bits, as runs of one or packed (Parquet's RLE hybrid).
class RunReader {
 public:
  RunReader() = default;
  // Numbers of 0 bits need no bytes.
  RunReader(std::string_view bytes, int bits) : bytes_(bytes), bits_(bits) {}
  // False when the bytes end.
  bool Next(uint32_t& value);

 private:
  bool StartRun();

  std::string_view bytes_;
  int bits_ = 0;
  uint64_t left_ = 0;
  bool packed_ = false;
  uint32_t value_ = 0;
  std::string_view run_;
  uint64_t at_bit_ = 0;
};

// How the values of a page are written; the numbers are the file's.
enum class Encoding {
  kPlain = 0,
  kPlainDictionary = 2,
  kRle = 3,
  kBitPacked = 4,
  kDelta = 5,
  kDeltaLength = 6,
  kDeltaBytes = 7,
  kDictionary = 8,
  kStreamSplit = 9
};

// Reads the values of a page one by one.
class PageValues {
 public:
  PageValues() = default;
  // `count`: how many there may be. False when the page is damaged, or its encoding does not go
  // with the column. What it takes of memory beside the page is `extra` bytes.
  bool Open(const Leaf& leaf, Encoding encoding, std::string_view bytes, int64_t count,
            const std::vector<Value>* dictionary);
  // False when there is no further value.
  bool Next(Value& value);
  static int64_t ExtraBytes(Encoding encoding, int64_t count);

 private:
  bool Plain(Value& value);
  bool Fixed(std::string_view bytes, Value& value) const;
  bool DeltaBytes(Value& value);
  bool OpenDelta(int64_t count);

  const Leaf* leaf_ = nullptr;
  Encoding encoding_ = Encoding::kPlain;
  std::string_view bytes_;
  size_t at_ = 0;  // next byte, bit or number
  RunReader runs_;
  const std::vector<Value>* dictionary_ = nullptr;
  std::vector<int64_t> numbers_, suffixes_;
  std::string last_;
};

}  // namespace sft::columnar
