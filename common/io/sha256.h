#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace sft::io {

// Incremental SHA-256 (FIPS 180-4). Not thread-safe. Uses the CPU's SHA instructions if it has
// them, because weights of many gigabytes are hashed. OpenSSL is not used because the engine links
// this library too.
class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  Sha256();
  void Update(std::string_view bytes) { Update(bytes.data(), bytes.size()); }
  void Update(const void* data, size_t size);
  // Ends the stream; the object must not be used afterwards.
  Digest Finish();
  // The digest as 64 lower-case hexadecimal digits.
  std::string FinishHex();

 private:
  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> buffer_;
  size_t buffered_ = 0;
  uint64_t total_ = 0;
};

std::string ToHex(const Sha256::Digest& digest);
std::string Sha256Hex(std::string_view bytes);

inline constexpr size_t kSha256Digits = 64;

// True for 64 lower-case hexadecimal digits.
bool IsSha256Hex(std::string_view text);

// Digest and size of a file: the name of a blob.
struct FileHash {
  std::string sha256;
  int64_t size = 0;
};

// Reads the file once, in chunks. `stop` is asked before each chunk; ABORTED as soon as it returns
// true.
absl::StatusOr<FileHash> HashFile(const std::string& path, const std::function<bool()>& stop = {});

}  // namespace sft::io
