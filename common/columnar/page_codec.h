#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace sft::columnar {

// How pages of a Parquet file are packed; the numbers are the file's.
enum class Codec {
  kNone = 0,
  kSnappy = 1,
  kGzip = 2,
  kLzo = 3,
  kBrotli = 4,
  kLz4 = 5,
  kZstd = 6,
  kLz4Raw = 7
};

// Why pages of the codec are not read; empty if they are.
std::string CodecRefusal(int codec);

// Unpacks `in` to `out`, whose size is what the page says. False: it is damaged.
bool UnpackPage(Codec codec, std::string_view in, std::string& out);

// Unpacks an LZ4 frame or Zstandard frames to `out`, whose size is known. False: it is damaged.
bool UnpackLz4Frame(std::string_view in, std::string& out);
bool UnpackZstd(std::string_view in, std::string& out);

}  // namespace sft::columnar
