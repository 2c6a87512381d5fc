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
// offset of its first byte: `00000000000000000000.seg`, `00000000000016777216.seg`. Offsets never
// change: bytes that were removed leave a hole between two segments. One writer; not thread-safe.
class SegmentFile {
 public:
  static constexpr int64_t kSegmentBytes = int64_t{16} << 20;
  // Sizes at which the first segment and the others are full.
  struct Shape {
    int64_t head_bytes = kSegmentBytes;
    int64_t segment_bytes = kSegmentBytes;
  };

  // Opens what is there; the folder is created by the first append.
  static absl::StatusOr<SegmentFile> Open(std::string dir, Shape shape);
  static absl::StatusOr<SegmentFile> Open(std::string dir) { return Open(std::move(dir), {}); }

  // Appends `bytes`, which belong at `offset`. Bytes that are there already are skipped; a gap
  // writes nothing. Returns where the stream ends now: the offset it wants next.
  absl::StatusOr<int64_t> Append(int64_t offset, std::string_view bytes);
  // Bytes up to `offset` will never come: leaves a hole there. Nothing if they are there.
  absl::Status SkipTo(int64_t offset);
  // What was appended is on the disk, also what was so before this object was opened.
  absl::Status Sync();
  // Up to `max` bytes from `offset`; empty at the end and in a hole. OUT_OF_RANGE beyond the end.
  absl::StatusOr<std::string> Read(int64_t offset, int64_t max) const;
  // The first offset from `offset` on that is no hole; at most the end.
  int64_t SkipHole(int64_t offset) const;
  // Whether the last segment is still there as it was written: not removed or cut by somebody else.
  bool IsIntact() const;
  // Cuts the end off: at most within the last segment.
  absl::Status TruncateTail(int64_t size);
  // Removes the oldest segment but the first one, which says how it all began, and the last one.
  // Returns the bytes it had; 0: there is none to remove.
  absl::StatusOr<int64_t> RemoveOldest();

  int64_t size() const { return size_; }
  // What lies on the disk: the size without the holes.
  int64_t stored_bytes() const { return stored_; }
  int segments() const { return static_cast<int>(segments_.size()); }

 private:
  SegmentFile(std::string dir, Shape shape) : dir_(std::move(dir)), shape_(shape) {}
  std::string SegmentPath(int64_t start) const;
  bool Full() const;
  absl::Status OpenForAppend();
  absl::Status OpenLast();
  absl::Status StartSegment();

  std::string dir_;
  Shape shape_;
  std::map<int64_t, int64_t> segments_;  // start → size
  std::optional<io::AppendFile> last_;
  int64_t size_ = 0;
  int64_t stored_ = 0;
};

}  // namespace sft::server
