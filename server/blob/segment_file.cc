#include "server/blob/segment_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace sft::server {

absl::StatusOr<SegmentFile> SegmentFile::Open(std::string dir, Shape shape) {
  SegmentFile file(std::move(dir), shape);
  if (!io::IsDirectory(file.dir_)) return file;
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(file.dir_));
  for (const std::string& name : names) {
    int64_t start = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), start);
    if (error != std::errc() || std::string_view(end) != ".seg") continue;
    if (start < file.size_) {
      return DataLoss(fmt::format("{}: two segments have byte {}", file.dir_, start));
    }
    SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(file.SegmentPath(start)));
    file.segments_[start] = size;
    file.size_ = start + size;
    file.stored_ += size;
  }
  return file;
}

std::string SegmentFile::SegmentPath(int64_t start) const {
  return fmt::format("{}/{:020}.seg", dir_, start);
}

bool SegmentFile::Full() const {
  if (segments_.empty()) return true;
  const auto& [start, size] = *segments_.rbegin();
  return size >= (start == 0 ? shape_.head_bytes : shape_.segment_bytes);
}

absl::Status SegmentFile::StartSegment() {
  if (segments_.empty()) {
    SFT_RETURN_IF_ERROR(io::MakeDirs(dir_));
  } else {
    // A power failure must not leave a hole before bytes that are on the disk.
    SFT_RETURN_IF_ERROR(Sync());
  }
  SFT_ASSIGN_OR_RETURN(last_, io::AppendFile::Open(SegmentPath(size_)));
  segments_[size_] = last_->size();
  return absl::OkStatus();
}

absl::Status SegmentFile::OpenLast() {
  if (last_.has_value()) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(last_, io::AppendFile::Open(SegmentPath(segments_.rbegin()->first)));
  return absl::OkStatus();
}

// Opens the segment to append to: the last one, or a new one when that is full.
absl::Status SegmentFile::OpenForAppend() { return Full() ? StartSegment() : OpenLast(); }

absl::StatusOr<int64_t> SegmentFile::Append(int64_t offset, std::string_view bytes) {
  if (offset > size_) return size_;
  const int64_t known = size_ - offset;
  if (known >= static_cast<int64_t>(bytes.size())) return size_;
  bytes.remove_prefix(static_cast<size_t>(known));
  SFT_RETURN_IF_ERROR(OpenForAppend());
  SFT_RETURN_IF_ERROR(last_->Append(bytes));
  segments_.rbegin()->second = last_->size();
  size_ += static_cast<int64_t>(bytes.size());
  stored_ += static_cast<int64_t>(bytes.size());
  return size_;
}

absl::Status SegmentFile::SkipTo(int64_t offset) {
  if (offset <= size_) return absl::OkStatus();
  const int64_t before = size_;
  size_ = offset;
  const absl::Status started = StartSegment();
  if (!started.ok()) size_ = before;
  return started;
}

absl::Status SegmentFile::Sync() {
  if (segments_.empty()) return absl::OkStatus();
  // A segment that was closed and opened again may have bytes that are not on the disk yet.
  SFT_RETURN_IF_ERROR(OpenLast());
  return last_->Sync();
}

int64_t SegmentFile::SkipHole(int64_t offset) const {
  const auto next = segments_.upper_bound(offset);
  if (next != segments_.begin()) {
    const auto& [start, size] = *std::prev(next);
    if (offset < start + size) return offset;
  }
  return next != segments_.end() ? next->first : std::max(offset, size_);
}

absl::StatusOr<std::string> SegmentFile::Read(int64_t offset, int64_t max) const {
  if (offset < 0 || offset > size_) {
    return OutOfRange(fmt::format("offset {} is beyond the end, {}", offset, size_));
  }
  std::string bytes;
  auto segment = segments_.upper_bound(offset);
  if (segment != segments_.begin()) --segment;
  for (; segment != segments_.end() && static_cast<int64_t>(bytes.size()) < max; ++segment) {
    const auto [start, size] = *segment;
    if (start > offset + static_cast<int64_t>(bytes.size())) break;  // a hole
    const int64_t skip = std::max<int64_t>(0, offset - start);
    const int64_t want = std::min(size - skip, max - static_cast<int64_t>(bytes.size()));
    if (want <= 0) continue;
    SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(SegmentPath(start)));
    const size_t before = bytes.size();
    bytes.resize(before + static_cast<size_t>(want));
    SFT_ASSIGN_OR_RETURN(const size_t got, io::ReadAt(fd.get(), skip, bytes.data() + before,
                                                      static_cast<size_t>(want), dir_));
    bytes.resize(before + got);
    if (static_cast<int64_t>(got) < want) break;
  }
  return bytes;
}

bool SegmentFile::IsIntact() const {
  if (segments_.empty()) return true;
  const auto& [start, size] = *segments_.rbegin();
  return io::FileSize(SegmentPath(start)).value_or(-1) == size;
}

absl::Status SegmentFile::TruncateTail(int64_t size) {
  if (segments_.empty() || size >= size_) return absl::OkStatus();
  const int64_t start = segments_.rbegin()->first;
  if (size < start) return OutOfRange("only the last segment can be cut");
  SFT_RETURN_IF_ERROR(OpenLast());
  SFT_RETURN_IF_ERROR(last_->Truncate(size - start));
  segments_.rbegin()->second = size - start;
  stored_ -= size_ - size;
  size_ = size;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SegmentFile::RemoveOldest() {
  if (segments_.size() < 3) return int64_t{0};
  const auto oldest = std::next(segments_.begin());
  const int64_t bytes = oldest->second;
  SFT_RETURN_IF_ERROR(io::RemoveAll(SegmentPath(oldest->first)));
  segments_.erase(oldest);
  stored_ -= bytes;
  return bytes;
}

}  // namespace sft::server
