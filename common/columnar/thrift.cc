#include "common/columnar/thrift.h"

namespace sft::columnar {

int ThriftReader::Byte() {
  if (at_ >= bytes_.size()) Cut();
  return ok_ ? static_cast<unsigned char>(bytes_[at_++]) : 0;
}

uint64_t ThriftReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; ok_; shift += 7) {
    if (shift > 63) {
      Fail();
      break;
    }
    const int byte = Byte();
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) break;
  }
  return ok_ ? value : 0;
}

int64_t ThriftReader::Int() {
  const uint64_t value = Varint();
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

std::string_view ThriftReader::Binary() {
  const uint64_t size = Varint();
  if (size > bytes_.size() - at_) Cut();
  if (!ok_) return {};
  at_ += size;
  return bytes_.substr(at_ - size, size);
}

void ThriftReader::Struct(const std::function<bool(int id, int type)>& field) {
  if (++depth_ > kMostDepth) Fail();
  int64_t id = 0;
  while (ok_) {
    const int head = Byte();
    const int type = head & 0xf;
    if (type == kStop) break;
    id = (head >> 4) != 0 ? id + (head >> 4) : Int();
    if (id < 0 || id > INT16_MAX) Fail();
    if (ok_ && !field(static_cast<int>(id), type)) Skip(type);
  }
  --depth_;
}

void ThriftReader::List(const std::function<void(int type)>& item) {
  if (++depth_ > kMostDepth) Fail();
  const int head = Byte();
  const uint64_t size = (head >> 4) == 15 ? Varint() : static_cast<uint64_t>(head >> 4);
  // Each element takes a byte at least.
  if (size > bytes_.size() - at_) Cut();
  for (uint64_t i = 0; i < size && ok_; ++i) item(head & 0xf);
  --depth_;
}

void ThriftReader::Skip(int type) {
  switch (type) {
    case kTrue:
    case kFalse:
      return;
    case kByte:
      Byte();
      return;
    case kI16:
    case kI32:
    case kI64:
      Int();
      return;
    case kDouble:
      if (bytes_.size() - at_ < 8) Cut();
      if (ok_) at_ += 8;
      return;
    case kBinary:
      Binary();
      return;
    case kList:
    case kSet:
      // Booleans take a byte each in a list.
      List([this](int item) { Skip(item == kTrue || item == kFalse ? kByte : item); });
      return;
    case kStruct:
      Struct([](int, int) { return false; });
      return;
    default:
      Fail();  // maps, which Parquet has none of
  }
}

}  // namespace sft::columnar
