#include "common/columnar/page_codec.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <cstring>

namespace sft::columnar {
namespace {

// What an unpacker writes: copies from what was written before, never beyond the end.
class Output {
 public:
  explicit Output(std::string& out) : out_(out) {}
  bool Append(std::string_view bytes) {
    if (bytes.size() > out_.size() - size_) return false;
    std::memcpy(out_.data() + size_, bytes.data(), bytes.size());
    size_ += bytes.size();
    return true;
  }
  // Regions may overlap: what was just written is copied on.
  bool Repeat(size_t distance, size_t length) {
    if (distance == 0 || distance > size_ || length > out_.size() - size_) return false;
    char* to = out_.data() + size_;
    const char* from = to - distance;
    if (distance >= length) {
      std::memcpy(to, from, length);
    } else {
      for (size_t i = 0; i < length; ++i) to[i] = from[i];
    }
    size_ += length;
    return true;
  }
  bool full() const { return size_ == out_.size(); }
  size_t size() const { return size_; }

 private:
  std::string& out_;
  size_t size_ = 0;
};

class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  size_t size() const { return bytes_.size(); }
  // Little-endian.
  bool Take(size_t count, size_t& value) {
    if (bytes_.size() < count) return false;
    value = 0;
    for (size_t i = 0; i < count; ++i) {
      value |= static_cast<size_t>(static_cast<unsigned char>(bytes_[i])) << (8 * i);
    }
    bytes_.remove_prefix(count);
    return true;
  }
  bool Take(size_t count, std::string_view& part) {
    if (bytes_.size() < count) return false;
    part = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return true;
  }

 private:
  std::string_view bytes_;
};

bool UnpackSnappy(std::string_view packed, std::string& unpacked) {
  Input in(packed);
  size_t size = 0, byte = 0x80;
  for (int shift = 0; (byte & 0x80) != 0; shift += 7) {
    if (shift > 28 || !in.Take(1, byte)) return false;
    size |= (byte & 0x7f) << shift;
  }
  if (size != unpacked.size()) return false;
  Output out(unpacked);
  while (!in.empty()) {
    size_t tag = 0, distance = 0;
    in.Take(1, tag);
    size_t length = (tag >> 2) + 1;
    switch (tag & 3) {
      case 0: {
        if (length > 60 && (!in.Take(length - 60, length) || ++length == 0)) return false;
        std::string_view literal;
        if (!in.Take(length, literal) || !out.Append(literal)) return false;
        continue;
      }
      case 1:
        if (!in.Take(1, distance)) return false;
        length = (tag >> 2 & 7) + 4;
        distance |= (tag >> 5) << 8;
        break;
      case 2:
        if (!in.Take(2, distance)) return false;
        break;
      default:
        if (!in.Take(4, distance)) return false;
    }
    if (!out.Repeat(distance, length)) return false;
  }
  return out.full();
}

// Lengths of 15 go on in the bytes that follow.
bool TakeLz4Length(Input& in, size_t& length) {
  if (length != 15) return true;
  for (size_t byte = 255; byte == 255; length += byte) {
    if (!in.Take(1, byte)) return false;
  }
  return true;
}

bool UnpackLz4Block(std::string_view packed, Output& out) {
  Input in(packed);
  while (!in.empty()) {
    size_t token = 0, distance = 0;
    in.Take(1, token);
    size_t literals = token >> 4, length = token & 15;
    std::string_view literal;
    if (!TakeLz4Length(in, literals) || !in.Take(literals, literal) || !out.Append(literal)) {
      return false;
    }
    if (in.empty()) return true;  // the last sequence has no match
    if (!in.Take(2, distance) || !TakeLz4Length(in, length)) return false;
    if (!out.Repeat(distance, length + 4)) return false;
  }
  return true;
}

size_t BigEndian(size_t value) { return __builtin_bswap32(static_cast<uint32_t>(value)); }

// Blocks behind their sizes, unpacked and packed, as Hadoop writes them.
bool UnpackFramedLz4(std::string_view packed, std::string& unpacked) {
  Input in(packed);
  Output out(unpacked);
  while (!in.empty()) {
    size_t whole = 0, size = 0;
    std::string_view block;
    if (!in.Take(4, whole) || !in.Take(4, size) || !in.Take(BigEndian(size), block)) return false;
    const size_t before = out.size();
    if (!UnpackLz4Block(block, out) || out.size() - before != BigEndian(whole)) return false;
  }
  return out.full();
}

bool UnpackRawLz4(std::string_view packed, std::string& unpacked) {
  Output out(unpacked);
  return UnpackLz4Block(packed, out) && out.full();
}

bool UnpackGzip(std::string_view packed, std::string& unpacked) {
  z_stream stream = {};
  if (inflateInit2(&stream, 15 + 32) != Z_OK) return false;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(unpacked.data());
  stream.avail_out = static_cast<uInt>(unpacked.size());
  int result = inflate(&stream, Z_FINISH);
  // A page may be several members.
  while (result == Z_STREAM_END && stream.avail_in > 0 && inflateReset(&stream) == Z_OK) {
    result = inflate(&stream, Z_FINISH);
  }
  const bool whole = result == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  return whole;
}

}  // namespace

std::string CodecRefusal(int codec) {
  switch (static_cast<Codec>(codec)) {
    case Codec::kNone:
    case Codec::kSnappy:
    case Codec::kGzip:
    case Codec::kLz4:
    case Codec::kZstd:
    case Codec::kLz4Raw:
      return "";
    case Codec::kLzo:
    case Codec::kBrotli:
      break;
  }
  const std::string name = codec == static_cast<int>(Codec::kLzo) ? "LZO"
                           : codec == static_cast<int>(Codec::kBrotli)
                               ? "Brotli"
                               : fmt::format("codec {}", codec);
  return fmt::format(
      "packed with {}, which is not read; write the file with zstd, snappy, gzip or lz4 (pandas: "
      "to_parquet(..., compression=\"zstd\"))",
      name);
}

bool UnpackPage(Codec codec, std::string_view in, std::string& out) {
  switch (codec) {
    case Codec::kNone:
      if (in.size() != out.size()) return false;
      out.assign(in);
      return true;
    case Codec::kSnappy:
      return UnpackSnappy(in, out);
    case Codec::kGzip:
      return UnpackGzip(in, out);
    case Codec::kLz4:  // some writers leave the frames out
      return UnpackFramedLz4(in, out) || UnpackRawLz4(in, out);
    case Codec::kZstd:
      return UnpackZstd(in, out);
    case Codec::kLz4Raw:
      return UnpackRawLz4(in, out);
    case Codec::kLzo:
    case Codec::kBrotli:
      break;
  }
  return false;
}

bool UnpackZstd(std::string_view in, std::string& out) {
  return ZSTD_decompress(out.data(), out.size(), in.data(), in.size()) == out.size();
}

bool UnpackLz4Frame(std::string_view packed, std::string& unpacked) {
  constexpr size_t kFrameMagic = 0x184d2204, kPlainBlock = size_t{1} << 31;
  constexpr size_t kBlockSums = 0x10, kHasSize = 0x08, kHasDictionary = 0x01;
  Input in(packed);
  Output out(unpacked);
  size_t magic = 0, flags = 0, skipped = 0;
  if (!in.Take(4, magic) || magic != kFrameMagic || !in.Take(1, flags) || !in.Take(1, skipped) ||
      (flags & kHasDictionary) != 0 || ((flags & kHasSize) != 0 && !in.Take(8, skipped)) ||
      !in.Take(1, skipped)) {
    return false;
  }
  for (size_t size = 0;;) {
    std::string_view block;
    if (!in.Take(4, size)) return false;
    if (size == 0) return out.full();  // a check sum of the content may follow
    if (!in.Take(size & ~kPlainBlock, block)) return false;
    if ((size & kPlainBlock) != 0 ? !out.Append(block) : !UnpackLz4Block(block, out)) return false;
    if ((flags & kBlockSums) != 0 && !in.Take(4, skipped)) return false;
  }
}

}  // namespace sft::columnar
