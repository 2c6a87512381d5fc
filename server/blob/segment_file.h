#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/io/file.h"

namespace sft::server {

// An endless append-only byte stream kept as files of limited size in one folder, each named by the
// offset of its first byte: `00000000000000000000.seg`, `00000000000016777216.seg`. One writer;
// not thread-safe.
class SegmentFile {
 public:
  static constexpr int64_t kSegmentBytes = int64_t{16} << 20;

  // Opens what is there; the folder is created by the first append.
  static absl::StatusOr<SegmentFile> Open(std::string dir);

  // Appends `bytes`, which belong at `offset`. Bytes that are there already are skipped; a gap
  // writes nothing. Returns where the stream ends now: the offset it wants next.
  absl::StatusOr<int64_t> Append(int64_t offset, std::string_view bytes);
  absl::Status Sync();
  // Up to `max` bytes from `offset`; empty at the end. OUT_OF_RANGE beyond it.
  absl::StatusOr<std::string> Read(int64_t offset, int64_t max) const;
  // Cuts the end off: at most within the last segment.
  absl::Status TruncateTail(int64_t size);
  int64_t size() const { return size_; }

 private:
  explicit SegmentFile(std::string dir) : dir_(std::move(dir)) {}
  std::string SegmentPath(int64_t start) const;
  absl::Status OpenLast();

  std::string dir_;
  std::map<int64_t, int64_t> segments_;  // start → size
  std::optional<io::AppendFile> last_;
  int64_t size_ = 0;
};

}  // namespace sft::server
