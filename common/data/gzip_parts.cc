#include "common/data/gzip_parts.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

namespace sft::data {
namespace {

// Fast: what is packed is text of few words, at 100 MB a second to about a tenth.
constexpr int kLevel = 3;
constexpr int kRawDeflate = -15;  // without zlib's own head and tail
constexpr int kMemory = 8;

// Packed with DEFLATE, without a name, a time and flags; made on Unix.
constexpr std::string_view kHead("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", 10);
constexpr std::string_view kLastBlock("\x03\x00", 2);  // an empty one

void AddLittleEndian(uint32_t value, std::string& bytes) {
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
}

}  // namespace

TextSum TextSum::Of(std::string_view text) {
  const uLong sum = crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size());
  return {static_cast<uint32_t>(sum), static_cast<int64_t>(text.size())};
}

TextSum TextSum::Then(const TextSum& next) const {
  return {static_cast<uint32_t>(crc32_combine(crc32, next.crc32, next.bytes)), bytes + next.bytes};
}

struct PartPacker::Stream {
  z_stream z{};
};

PartPacker::PartPacker(Sink sink) : sink_(std::move(sink)), stream_(std::make_unique<Stream>()) {
  if (deflateInit2(&stream_->z, kLevel, Z_DEFLATED, kRawDeflate, kMemory, Z_DEFAULT_STRATEGY) !=
      Z_OK) {
    throw std::bad_alloc();
  }
}

PartPacker::~PartPacker() { deflateEnd(&stream_->z); }

void PartPacker::Add(std::string_view text) {
  sum_ = sum_.Then(TextSum::Of(text));
  Deflate(text, Z_NO_FLUSH);
}

void PartPacker::Finish() { Deflate({}, Z_SYNC_FLUSH); }

void PartPacker::Deflate(std::string_view text, int flush) {
  char buffer[65536];
  z_stream& z = stream_->z;
  do {
    // zlib counts in 32 bits.
    const size_t now = std::min<size_t>(text.size(), std::numeric_limits<uInt>::max());
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    z.avail_in = static_cast<uInt>(now);
    text.remove_prefix(now);
    do {
      z.next_out = reinterpret_cast<Bytef*>(buffer);
      z.avail_out = sizeof buffer;
      deflate(&z, flush);
      const size_t made = sizeof buffer - z.avail_out;
      packed_bytes_ += static_cast<int64_t>(made);
      if (made > 0) sink_({buffer, made});
    } while (z.avail_out == 0);
  } while (!text.empty());
}

std::string GzipFrame::Packed(std::string_view text) {
  std::string bytes;
  PartPacker packer([&](std::string_view packed) { bytes += packed; });
  packer.Add(text);
  packer.Finish();
  Add(packer.sum());
  return bytes;
}

std::string GzipFrame::Begin(std::string_view text) { return std::string(kHead) + Packed(text); }

std::string GzipFrame::End(std::string_view text) {
  std::string bytes = Packed(text);
  bytes += kLastBlock;
  AddLittleEndian(sum_.crc32, bytes);
  AddLittleEndian(static_cast<uint32_t>(sum_.bytes), bytes);
  return bytes;
}

}  // namespace sft::data
