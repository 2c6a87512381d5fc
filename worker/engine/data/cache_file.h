#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/engine/data/dataset.h"

namespace sft::engine {

// The file that PrepareDataset writes and ranks map. All integers little-endian, parts at multiples
// of 8 bytes, in this order:
//   header   magic "SFTDATA2", key (SHA-256), digest (SHA-256 of the file with these 32 bytes
//   zero),
//            documents d, tokens t, bytes s of the statistics
//   offsets  u64[d + 1]   document i is tokens [offsets[i], offsets[i + 1])
//   lines    u64[d]       line of the row in the data file, from 1
//   counts   u32[d]       tokens of the document that carry loss
//   tokens   i32[t]
//   loss     u8[t]        LossMark; 0: the token is not to be predicted
//   stats    s bytes of JSON
struct CacheView {
  std::span<const uint64_t> offsets;
  std::span<const uint64_t> lines;
  std::span<const uint32_t> loss_counts;
  std::span<const int32_t> tokens;
  std::span<const uint8_t> loss;
  DatasetStats stats;
};

// Documents being collected.
struct CacheContents {
  std::vector<uint64_t> offsets = {0};
  std::vector<uint64_t> lines;
  std::vector<uint32_t> loss_counts;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> loss;
  DatasetStats stats;

  void Add(std::span<const int32_t> document, std::span<const uint8_t> document_loss, int64_t line);
  CacheView View() const;
};

// Replaces the file as a whole or leaves nothing behind. `key` is 64 hexadecimal digits. Throws
// InfrastructureError when the disk is full or fails.
void WriteCacheFile(const std::filesystem::path& path, std::string_view key,
                    const CacheContents& contents);

// A view of `bytes`, which must be a multiple of 8 in address. Throws InternalError, naming `path`,
// when they are not a whole cache file of this version; `key`: what it must be made from, empty:
// any.
CacheView ReadCacheFile(std::string_view bytes, std::string_view key, std::string_view path);

}  // namespace sft::engine
