#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace sft::columnar {

// A table of a flat buffer, in which Arrow's messages are written. Every read is checked: what does
// not stand inside the buffer reads as if it was not there, and clears the buffer's `ok`.
class FlatTable {
 public:
  struct Buffer {
    std::string_view bytes;
    bool ok = true;
  };

  FlatTable() = default;
  static FlatTable Root(Buffer& buffer) {
    FlatTable start(&buffer, 0);
    return {&buffer, start.Load<uint32_t>(0)};
  }

  bool there() const { return buffer_ != nullptr; }

  template <typename T>
  T Get(int field, T fallback) const {
    const size_t at = Place(field);
    return at == 0 ? fallback : Load<T>(at);
  }
  FlatTable Table(int field) const {
    const size_t at = Place(field);
    return at == 0 ? FlatTable() : FlatTable(buffer_, at + Load<uint32_t>(at));
  }
  std::string_view Text(int field) const {
    size_t size = 0;
    const size_t at = Vector(field, 1, size);
    return at == 0 ? std::string_view() : buffer_->bytes.substr(at, size);
  }
  // Position and count of a vector's elements; 0: it is not there.
  size_t Vector(int field, size_t element_size, size_t& count) const {
    count = 0;
    size_t at = Place(field);
    if (at == 0) return 0;
    at += Load<uint32_t>(at);
    const size_t size = Load<uint32_t>(at);
    if (!buffer_->ok || size > (buffer_->bytes.size() - at - 4) / element_size) {
      buffer_->ok = false;
      return 0;
    }
    count = size;
    return at + 4;
  }
  // The table that the vector's element at this position leads to.
  FlatTable At(size_t position) const { return {buffer_, position + Load<uint32_t>(position)}; }

  template <typename T>
  T Load(size_t at) const {
    T value = {};
    if (buffer_ == nullptr || at > buffer_->bytes.size() ||
        buffer_->bytes.size() - at < sizeof(T)) {
      if (buffer_ != nullptr) buffer_->ok = false;
      return value;
    }
    std::memcpy(&value, buffer_->bytes.data() + at, sizeof(T));
    return value;
  }

 private:
  FlatTable(Buffer* buffer, size_t at) : buffer_(buffer), at_(at) {}

  // Where the field's value stands; 0: nowhere.
  size_t Place(int field) const {
    if (buffer_ == nullptr) return 0;
    const auto table = static_cast<int64_t>(at_) - Load<int32_t>(at_);
    if (table < 0) {
      buffer_->ok = false;
      return 0;
    }
    const auto entry = static_cast<size_t>(4 + 2 * field);
    if (entry >= Load<uint16_t>(static_cast<size_t>(table))) return 0;
    const auto offset = Load<uint16_t>(static_cast<size_t>(table) + entry);
    return offset == 0 || !buffer_->ok ? 0 : at_ + offset;
  }

  Buffer* buffer_ = nullptr;
  size_t at_ = 0;
};

}  // namespace sft::columnar
