#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/io/file.h"

namespace sft::server {

// An unbounded append-only byte stream, stored as files of limited size in one folder. Each file is
// named by the offset of its first byte: `00000000000000000000.seg`, `00000000000016777216.seg`.
// Offsets never change: removed bytes leave a hole between two segments. One writer; not
// thread-safe.
class SegmentFile {
 public:
  static constexpr int64_t kSegmentBytes = int64_t{16} << 20;
  // Maximum sizes of the first segment and of the others.
  struct Shape {
    int64_t head_bytes = kSegmentBytes;
    int64_t segment_bytes = kSegmentBytes;
  };

  // Opens an existing stream; the folder is created by the first append.
  static absl::StatusOr<SegmentFile> Open(std::string dir, Shape shape);
  static absl::StatusOr<SegmentFile> Open(std::string dir) { return Open(std::move(dir), {}); }

  // Appends `bytes`, which belong at `offset`. Bytes that exist already are skipped; nothing is
  // written after a gap. Returns the end of the stream: the offset expected next.
  absl::StatusOr<int64_t> Append(int64_t offset, std::string_view bytes);
  // Leaves a hole up to `offset`, whose bytes will never arrive. Does nothing if they exist.
  absl::Status SkipTo(int64_t offset);
  // Makes everything appended durable, including appends made before this object was opened.
  absl::Status Sync();
  // Reads up to `max` bytes from `offset`; empty at the end and in a hole. OUT_OF_RANGE beyond the
  // end.
  absl::StatusOr<std::string> Read(int64_t offset, int64_t max) const;
  // The first offset from `offset` on that is not in a hole; at most the end.
  int64_t SkipHole(int64_t offset) const;
  // True when the last segment is still as it was written: not removed or cut by another process.
  bool IsIntact() const;
  // Cuts off the end: at most within the last segment.
  absl::Status TruncateTail(int64_t size);
  // Removes the oldest segment except the first, which shows how the run began, and the last.
  // Returns the bytes freed; 0 if there is none to remove.
  absl::StatusOr<int64_t> RemoveOldest();

  int64_t size() const { return size_; }
  // Bytes on the disk: the size without the holes.
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
