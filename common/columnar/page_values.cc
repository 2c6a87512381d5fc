#include "common/columnar/page_values.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace sft::columnar {
namespace {

bool TakeVarint(std::string_view& bytes, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift <= 63; shift += 7) {
    if (bytes.empty()) return false;
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return true;
  }
  return false;
}

int64_t Unzigzag(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

// `bits` bits from bit `at` on, lowest first. They must be inside.
uint64_t BitsAt(std::string_view bytes, uint64_t at, int bits) {
  uint64_t value = 0;
  for (int got = 0; got < bits;) {
    const uint64_t bit = at + static_cast<uint64_t>(got);
    const auto byte = static_cast<unsigned char>(bytes[bit / 8]);
    const int offset = static_cast<int>(bit % 8);
    const int take = std::min(8 - offset, bits - got);
    const uint64_t part = static_cast<uint64_t>(byte >> offset) & ((1U << take) - 1);
    value |= part << got;
    got += take;
  }
  return value;
}

// All numbers of a block-wise difference coding (DELTA_BINARY_PACKED), at most `most`.
bool ReadDeltas(std::string_view& bytes, int64_t most, std::vector<int64_t>& numbers) {
  uint64_t block = 0, parts = 0, count = 0, first = 0;
  if (!TakeVarint(bytes, block) || !TakeVarint(bytes, parts) || !TakeVarint(bytes, count) ||
      !TakeVarint(bytes, first)) {
    return false;
  }
  if (parts == 0 || block == 0 || block > 1 << 20 || block % parts != 0 || block / parts % 8 != 0 ||
      count > static_cast<uint64_t>(most)) {
    return false;
  }
  const uint64_t part_size = block / parts;
  auto number = static_cast<uint64_t>(Unzigzag(first));
  numbers.reserve(count);
  if (count > 0) numbers.push_back(static_cast<int64_t>(number));
  while (numbers.size() < count) {
    uint64_t least = 0;
    if (!TakeVarint(bytes, least) || bytes.size() < parts) return false;
    const std::string_view widths = bytes.substr(0, parts);
    bytes.remove_prefix(parts);
    for (size_t part = 0; part < parts && numbers.size() < count; ++part) {
      const int bits = static_cast<unsigned char>(widths[part]);
      const uint64_t size = part_size / 8 * static_cast<uint64_t>(bits);
      if (bits > 64 || bytes.size() < size) return false;
      for (uint64_t i = 0; i < part_size && numbers.size() < count; ++i) {
        number += static_cast<uint64_t>(Unzigzag(least)) +
                  BitsAt(bytes, i * static_cast<uint64_t>(bits), bits);
        numbers.push_back(static_cast<int64_t>(number));
      }
      bytes.remove_prefix(size);
    }
  }
  return true;
}

int WidthOf(const Leaf& leaf) {
  switch (leaf.stored) {
    case Stored::kInt32:
    case Stored::kFloat:
      return 4;
    case Stored::kInt64:
    case Stored::kDouble:
      return 8;
    case Stored::kInt96:
      return 12;
    case Stored::kFixed:
      return leaf.width;
    case Stored::kBoolean:
    case Stored::kByteArray:
      break;
  }
  return 0;
}

template <class T>
T Load(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

bool IsInteger(const Leaf& leaf) {
  return leaf.stored == Stored::kInt32 || leaf.stored == Stored::kInt64;
}

// Differences of 32-bit numbers wrap around in 32 bits.
int64_t Wrapped(const Leaf& leaf, int64_t number) {
  if (leaf.stored != Stored::kInt32) return number;
  return leaf.form.meaning == Meaning::kUnsigned
             ? static_cast<int64_t>(static_cast<uint32_t>(number))
             : static_cast<int64_t>(static_cast<int32_t>(number));
}

}  // namespace

bool RunReader::StartRun() {
  uint64_t head = 0;
  if (!TakeVarint(bytes_, head)) return false;
  packed_ = (head & 1) != 0;
  left_ = head >> 1;
  if (!packed_) {
    const auto size = static_cast<size_t>((bits_ + 7) / 8);
    if (bytes_.size() < size) return false;
    value_ = static_cast<uint32_t>(BitsAt(bytes_, 0, static_cast<int>(size * 8)));
    bytes_.remove_prefix(size);
    return true;
  }
  if (left_ > uint64_t{1} << 40) return false;
  const uint64_t size = left_ * static_cast<uint64_t>(bits_);
  // Some writers leave out the filling of the last run.
  run_ = bytes_.substr(0, std::min<uint64_t>(size, bytes_.size()));
  bytes_.remove_prefix(run_.size());
  left_ *= 8;
  at_bit_ = 0;
  return true;
}

bool RunReader::Next(uint32_t& value) {
  if (bits_ == 0) {
    value = 0;
    return true;
  }
  while (left_ == 0) {
    if (!StartRun()) return false;
  }
  --left_;
  if (!packed_) {
    value = value_;
    return true;
  }
  if (at_bit_ + static_cast<uint64_t>(bits_) > run_.size() * 8) return false;
  value = static_cast<uint32_t>(BitsAt(run_, at_bit_, bits_));
  at_bit_ += static_cast<uint64_t>(bits_);
  return true;
}

int64_t PageValues::ExtraBytes(Encoding encoding, int64_t count) {
  switch (encoding) {
    case Encoding::kDelta:
    case Encoding::kDeltaLength:
      return 8 * count;
    case Encoding::kDeltaBytes:
      return 16 * count;
    default:
      return 0;
  }
}

bool PageValues::OpenDelta(int64_t count) {
  if (!ReadDeltas(bytes_, count, numbers_)) return false;
  if (encoding_ == Encoding::kDeltaBytes && !ReadDeltas(bytes_, count, suffixes_)) return false;
  return encoding_ != Encoding::kDeltaBytes || numbers_.size() == suffixes_.size();
}

bool PageValues::Open(const Leaf& leaf, Encoding encoding, std::string_view bytes, int64_t count,
                      const std::vector<Value>* dictionary) {
  *this = PageValues();
  leaf_ = &leaf;
  encoding_ = encoding;
  bytes_ = bytes;
  dictionary_ = dictionary;
  switch (encoding) {
    case Encoding::kPlain:
      return true;
    case Encoding::kPlainDictionary:
    case Encoding::kDictionary: {
      if (dictionary == nullptr) return false;
      if (bytes.empty()) {  // all values are null: there is none to read
        runs_ = RunReader({}, 32);
        return true;
      }
      const int bits = static_cast<unsigned char>(bytes.front());
      runs_ = RunReader(bytes.substr(1), bits);
      return bits <= 32;
    }
    case Encoding::kRle:
      if (leaf.stored != Stored::kBoolean || bytes.size() < 4) return false;
      runs_ = RunReader(bytes.substr(4), 1);
      return true;
    case Encoding::kDelta:
      return IsInteger(leaf) && OpenDelta(count);
    case Encoding::kDeltaLength:
      return leaf.stored == Stored::kByteArray && OpenDelta(count);
    case Encoding::kDeltaBytes:
      return (leaf.stored == Stored::kByteArray || leaf.stored == Stored::kFixed) &&
             OpenDelta(count);
    case Encoding::kStreamSplit:
      return WidthOf(leaf) > 0 && bytes.size() % static_cast<size_t>(WidthOf(leaf)) == 0;
    case Encoding::kBitPacked:
      break;
  }
  return false;
}

bool PageValues::Fixed(std::string_view bytes, Value& value) const {
  switch (leaf_->stored) {
    case Stored::kInt32:
      value.number = Wrapped(*leaf_, Load<int32_t>(bytes));
      break;
    case Stored::kInt64:
      value.number = Load<int64_t>(bytes);
      break;
    case Stored::kFloat:
      value.real = Load<float>(bytes);
      break;
    case Stored::kDouble:
      value.real = Load<double>(bytes);
      break;
    default:
      value.bytes = bytes;
      if (leaf_->form.meaning == Meaning::kHalf) value.real = HalfToDouble(Load<uint16_t>(bytes));
  }
  return true;
}

bool PageValues::Plain(Value& value) {
  const std::string_view rest = bytes_.substr(std::min(at_, bytes_.size()));
  if (leaf_->stored == Stored::kBoolean) {
    if (at_ / 8 >= bytes_.size()) return false;
    value.number = static_cast<int64_t>(BitsAt(bytes_, at_++, 1));
    return true;
  }
  size_t width = static_cast<size_t>(WidthOf(*leaf_));
  if (leaf_->stored == Stored::kByteArray) {
    if (rest.size() < 4) return false;
    width = Load<uint32_t>(rest);
    if (width > rest.size() - 4) return false;
    value.bytes = rest.substr(4, width);
    at_ += 4 + width;
    return true;
  }
  if (rest.size() < width) return false;
  at_ += width;
  return Fixed(rest.substr(0, width), value);
}

bool PageValues::DeltaBytes(Value& value) {
  if (at_ >= numbers_.size()) return false;
  const int64_t prefix = numbers_[at_], size = suffixes_[at_];
  ++at_;
  if (prefix < 0 || prefix > static_cast<int64_t>(last_.size()) || size < 0 ||
      size > static_cast<int64_t>(bytes_.size())) {
    return false;
  }
  last_.resize(static_cast<size_t>(prefix));
  last_ += bytes_.substr(0, static_cast<size_t>(size));
  bytes_.remove_prefix(static_cast<size_t>(size));
  if (leaf_->stored == Stored::kByteArray) {
    value.bytes = last_;
    return true;
  }
  return last_.size() == static_cast<size_t>(leaf_->width) && Fixed(last_, value);
}

bool PageValues::Next(Value& value) {
  uint32_t index = 0;
  switch (encoding_) {
    case Encoding::kPlain:
      return Plain(value);
    case Encoding::kPlainDictionary:
    case Encoding::kDictionary:
      if (!runs_.Next(index) || index >= dictionary_->size()) return false;
      value = (*dictionary_)[index];
      return true;
    case Encoding::kRle:
      if (!runs_.Next(index)) return false;
      value.number = index;
      return true;
    case Encoding::kDelta:
      if (at_ >= numbers_.size()) return false;
      value.number = Wrapped(*leaf_, numbers_[at_++]);
      return true;
    case Encoding::kDeltaLength: {
      if (at_ >= numbers_.size()) return false;
      const int64_t size = numbers_[at_++];
      if (size < 0 || size > static_cast<int64_t>(bytes_.size())) return false;
      value.bytes = bytes_.substr(0, static_cast<size_t>(size));
      bytes_.remove_prefix(static_cast<size_t>(size));
      return true;
    }
    case Encoding::kDeltaBytes:
      return DeltaBytes(value);
    case Encoding::kStreamSplit: {
      const auto width = static_cast<size_t>(WidthOf(*leaf_));
      const size_t count = bytes_.size() / width;
      if (at_ >= count) return false;
      last_.resize(width);
      for (size_t i = 0; i < width; ++i) last_[i] = bytes_[i * count + at_];
      ++at_;
      return Fixed(last_, value);
    }
    case Encoding::kBitPacked:
      break;
  }
  return false;
}

}  // namespace sft::columnar
