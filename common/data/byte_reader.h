#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/io/file.h"

namespace sft::data {

// How a file is packed, told by its first bytes; its name has no say.
enum class Compression { kNone, kGzip, kZstd, kBzip2, kXz };
Compression CompressionOf(std::string_view head);

// The most that a packed file may unpack to: beyond kFreeBytes at most kMaxRatio times its size,
// and never more than kMaxBytes.
struct UnpackLimits {
  int64_t free_bytes = int64_t{1} << 30;
  int64_t max_ratio = 500;
  int64_t max_bytes = int64_t{1} << 38;
};

// The bytes of a file from start to end, unpacked where it is packed.
class ByteReader {
 public:
  static absl::StatusOr<std::unique_ptr<ByteReader>> Open(const std::string& path,
                                                          const UnpackLimits& limits = {});
  // The same for a file that is open; `path` stands in messages.
  static absl::StatusOr<std::unique_ptr<ByteReader>> Open(io::UniqueFd fd, const std::string& path,
                                                          const UnpackLimits& limits = {});
  virtual ~ByteReader() = default;
  // Up to `size` bytes; 0 at the end alone. INVALID_ARGUMENT when the file is cut short or damaged,
  // or unpacks to more than the limits.
  virtual absl::StatusOr<size_t> Read(char* data, size_t size) = 0;
};

}  // namespace sft::data
