#include "common/columnar/page_codec.h"

#include <fmt/format.h>
#include <lz4.h>
#include <lz4frame.h>
#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

#include <cstring>
#include <memory>

namespace sft::columnar {
namespace {

// One block of LZ4; `size` is what it has to give.
bool UnpackLz4Block(std::string_view in, char* out, size_t size) {
  if (in.size() > LZ4_MAX_INPUT_SIZE || size > LZ4_MAX_INPUT_SIZE) return false;
  const int made =
      LZ4_decompress_safe(in.data(), out, static_cast<int>(in.size()), static_cast<int>(size));
  return made >= 0 && static_cast<size_t>(made) == size;
}

uint32_t BigEndian(std::string_view bytes) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return __builtin_bswap32(value);
}

// Blocks behind their sizes, unpacked and packed, as Hadoop writes them.
bool UnpackFramedLz4(std::string_view in, std::string& out) {
  size_t made = 0;
  while (!in.empty()) {
    if (in.size() < 8) return false;
    const size_t whole = BigEndian(in), size = BigEndian(in.substr(4));
    in.remove_prefix(8);
    if (size > in.size() || whole > out.size() - made) return false;
    if (!UnpackLz4Block(in.substr(0, size), out.data() + made, whole)) return false;
    in.remove_prefix(size);
    made += whole;
  }
  return made == out.size();
}

bool UnpackSnappy(std::string_view in, std::string& out) {
  size_t size = out.size();
  return snappy_uncompress(in.data(), in.size(), out.data(), &size) == SNAPPY_OK &&
         size == out.size();
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
      return UnpackFramedLz4(in, out) || UnpackLz4Block(in, out.data(), out.size());
    case Codec::kZstd:
      return UnpackZstd(in, out);
    case Codec::kLz4Raw:
      return UnpackLz4Block(in, out.data(), out.size());
    case Codec::kLzo:
    case Codec::kBrotli:
      break;
  }
  return false;
}

bool UnpackZstd(std::string_view in, std::string& out) {
  return ZSTD_decompress(out.data(), out.size(), in.data(), in.size()) == out.size();
}

bool UnpackLz4Frame(std::string_view in, std::string& out) {
  LZ4F_dctx* made_context = nullptr;
  if (LZ4F_isError(LZ4F_createDecompressionContext(&made_context, LZ4F_VERSION))) return false;
  const std::unique_ptr<LZ4F_dctx, decltype(&LZ4F_freeDecompressionContext)> context(
      made_context, &LZ4F_freeDecompressionContext);
  for (size_t made = 0;;) {
    size_t taken = in.size(), given = out.size() - made;
    const size_t more =
        LZ4F_decompress(context.get(), out.data() + made, &given, in.data(), &taken, nullptr);
    if (LZ4F_isError(more)) return false;
    in.remove_prefix(taken);
    made += given;
    if (more == 0) return made == out.size();
    if (taken == 0 && given == 0) return false;  // it is cut short, or has more
  }
}

}  // namespace sft::columnar
