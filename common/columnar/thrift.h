#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace sft::columnar {

// Reads Thrift's compact protocol, in which Parquet's headers are written. What does not fit clears
// ok(), and from then on every read gives nothing.
class ThriftReader {
 public:
  // Types of fields and elements.
  enum Type {
    kStop = 0,
    kTrue = 1,
    kFalse = 2,
    kByte = 3,
    kI16 = 4,
    kI32 = 5,
    kI64 = 6,
    kDouble = 7,
    kBinary = 8,
    kList = 9,
    kSet = 10,
    kMap = 11,
    kStruct = 12
  };

  explicit ThriftReader(std::string_view bytes) : bytes_(bytes) {}

  // Calls `field` for each field of the struct that stands here. It reads the value, or returns
  // false to have it passed over.
  void Struct(const std::function<bool(int id, int type)>& field);
  // Calls `item` for each element of the list that stands here.
  void List(const std::function<void(int type)>& item);
  int64_t Int();
  std::string_view Binary();

  bool ok() const { return ok_; }
  // The bytes end inside a value; more of them may mend it.
  bool cut() const { return cut_; }
  size_t position() const { return at_; }
  void Fail() { ok_ = false; }

 private:
  static constexpr int kMostDepth = 40;
  void Skip(int type);
  uint64_t Varint();
  int Byte();
  void Cut() { ok_ = false, cut_ = true; }

  std::string_view bytes_;
  size_t at_ = 0;
  int depth_ = 0;
  bool ok_ = true, cut_ = false;
};

}  // namespace sft::columnar
