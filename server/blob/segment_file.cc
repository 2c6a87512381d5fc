#include "server/blob/segment_file.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace sft::server {

absl::StatusOr<SegmentFile> SegmentFile::Open(std::string dir) {
  SegmentFile file(std::move(dir));
  if (!io::IsDirectory(file.dir_)) return file;
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(file.dir_));
  for (const std::string& name : names) {
    int64_t start = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), start);
    if (error != std::errc() || std::string_view(end) != ".seg") continue;
    if (start != file.size_) {
      return DataLoss(fmt::format("{}: bytes {} to {} are missing", file.dir_, file.size_, start));
    }
    SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(file.SegmentPath(start)));
    file.segments_[start] = size;
    file.size_ = start + size;
  }
  return file;
}

std::string SegmentFile::SegmentPath(int64_t start) const {
  return fmt::format("{}/{:020}.seg", dir_, start);
}

// The segment to append to: the last one, or a new one when that is full.
absl::Status SegmentFile::OpenLast() {
  const bool full = segments_.empty() || segments_.rbegin()->second >= kSegmentBytes;
  if (last_.has_value() && !full) return absl::OkStatus();
  if (segments_.empty()) SFT_RETURN_IF_ERROR(io::MakeDirs(dir_));
  const int64_t start = full ? size_ : segments_.rbegin()->first;
  SFT_ASSIGN_OR_RETURN(last_, io::AppendFile::Open(SegmentPath(start)));
  segments_[start] = last_->size();
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SegmentFile::Append(int64_t offset, std::string_view bytes) {
  if (offset > size_) return size_;
  const int64_t known = size_ - offset;
  if (known >= static_cast<int64_t>(bytes.size())) return size_;
  bytes.remove_prefix(static_cast<size_t>(known));
  SFT_RETURN_IF_ERROR(OpenLast());
  SFT_RETURN_IF_ERROR(last_->Append(bytes));
  segments_.rbegin()->second = last_->size();
  size_ += static_cast<int64_t>(bytes.size());
  return size_;
}

absl::Status SegmentFile::Sync() {
  return last_.has_value() ? last_->Sync() : absl::OkStatus();
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

absl::Status SegmentFile::TruncateTail(int64_t size) {
  if (segments_.empty() || size >= size_) return absl::OkStatus();
  const int64_t start = segments_.rbegin()->first;
  if (size < start) return OutOfRange("only the last segment can be cut");
  if (!last_.has_value()) {
    SFT_ASSIGN_OR_RETURN(last_, io::AppendFile::Open(SegmentPath(start)));
  }
  SFT_RETURN_IF_ERROR(last_->Truncate(size - start));
  segments_.rbegin()->second = size - start;
  size_ = size;
  return absl::OkStatus();
}

}  // namespace sft::server
