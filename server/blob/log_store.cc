#include "server/blob/log_store.h"

#include <fmt/format.h>

#include <algorithm>

namespace sft::server {
namespace {

constexpr int64_t kMinSegment = 4 << 10;
constexpr int64_t kMaxSegment = 4 << 20;

// Segments small enough to keep a limit closely, and large enough to be few files.
SegmentFile::Shape ShapeFor(const LogLimits& limits) {
  int64_t segment = kMaxSegment;
  if (limits.log_bytes > 0) segment = std::clamp(limits.log_bytes / 16, kMinSegment, kMaxSegment);
  return {.head_bytes = std::max(segment / 4, kMinSegment), .segment_bytes = segment};
}

}  // namespace

LogStore::LogStore(std::string dir, LogLimits limits)
    : dir_(std::move(dir)), limits_(limits), shape_(ShapeFor(limits)) {}

std::string LogStore::RankStream(const std::string& attempt_uid, int rank) {
  return fmt::format("{}/rank-{}", attempt_uid, rank);
}

std::string LogStore::PrepareStream(const std::string& attempt_uid, const std::string& node) {
  return fmt::format("{}/{}/prepare", attempt_uid, node);
}

absl::StatusOr<SegmentFile*> LogStore::Find(const std::string& stream) {
  const auto known = std::find_if(open_.begin(), open_.end(),
                                  [&](const Entry& entry) { return entry.stream == stream; });
  if (known != open_.end() && !known->file.IsIntact()) {
    open_.erase(known);  // bytes that are lost are requested from the node again
  } else if (known != open_.end()) {
    open_.splice(open_.begin(), open_, known);
    return &open_.front().file;
  }
  SFT_ASSIGN_OR_RETURN(SegmentFile file, SegmentFile::Open(dir_ + "/" + stream, shape_));
  open_.push_front({stream, std::move(file)});
  if (open_.size() > kMaxOpen) open_.pop_back();
  return &open_.front().file;
}

absl::StatusOr<LogStore::Appended> LogStore::Append(const std::string& stream, const Piece& piece) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(SegmentFile * file, Find(stream));
  const int segments = file->segments();
  if (piece.skipped_from >= 0 && piece.skipped_from <= file->size()) {
    SFT_RETURN_IF_ERROR(file->SkipTo(piece.offset));
  }
  Appended result;
  SFT_ASSIGN_OR_RETURN(result.end, file->Append(piece.offset, piece.bytes));
  if (piece.sync) SFT_RETURN_IF_ERROR(file->Sync());
  result.started = file->segments() > segments;
  while (limits_.log_bytes > 0 && file->stored_bytes() > limits_.log_bytes) {
    SFT_ASSIGN_OR_RETURN(const int64_t removed, file->RemoveOldest());
    if (removed == 0) break;
  }
  return result;
}

absl::StatusOr<std::vector<std::string>> LogStore::StreamsOf(const std::string& attempt_uid) const {
  std::vector<std::string> streams;
  const std::string folder = dir_ + "/" + attempt_uid;
  if (!io::IsDirectory(folder)) return streams;
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(folder));
  for (const std::string& name : names) {
    const bool node = io::IsDirectory(folder + "/" + name + "/prepare");
    streams.push_back(attempt_uid + "/" + name + (node ? "/prepare" : ""));
  }
  return streams;
}

absl::Status LogStore::TrimJob(const std::vector<std::string>& attempt_uids) {
  if (limits_.job_bytes <= 0) return absl::OkStatus();
  MutexLock lock(mutex_);
  std::vector<std::pair<int64_t, std::string>> logs;  // a heap ordered by stored bytes
  int64_t total = 0;
  for (const std::string& uid : attempt_uids) {
    SFT_ASSIGN_OR_RETURN(const std::vector<std::string> streams, StreamsOf(uid));
    for (const std::string& stream : streams) {
      SFT_ASSIGN_OR_RETURN(const SegmentFile* file, Find(stream));
      logs.emplace_back(file->stored_bytes(), stream);
      total += file->stored_bytes();
    }
  }
  std::make_heap(logs.begin(), logs.end());
  while (total > limits_.job_bytes && !logs.empty()) {
    std::pop_heap(logs.begin(), logs.end());
    auto [stored, stream] = std::move(logs.back());
    logs.pop_back();
    SFT_ASSIGN_OR_RETURN(SegmentFile * file, Find(stream));
    SFT_ASSIGN_OR_RETURN(const int64_t removed, file->RemoveOldest());
    if (removed == 0) continue;  // its first and last segments stay
    total -= removed;
    logs.emplace_back(stored - removed, std::move(stream));
    std::push_heap(logs.begin(), logs.end());
  }
  return absl::OkStatus();
}

absl::Status LogStore::Remove(const std::string& attempt_uid) {
  MutexLock lock(mutex_);
  open_.remove_if([&](const Entry& entry) { return entry.stream.starts_with(attempt_uid + "/"); });
  return io::RemoveAll(dir_ + "/" + attempt_uid);
}

absl::StatusOr<LogStore::Chunk> LogStore::Read(const std::string& stream, int64_t offset,
                                               int64_t max) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(const SegmentFile* file, Find(stream));
  Chunk chunk;
  chunk.offset = file->SkipHole(offset);
  SFT_ASSIGN_OR_RETURN(chunk.bytes, file->Read(chunk.offset, max));
  return chunk;
}

absl::StatusOr<int64_t> LogStore::Size(const std::string& stream) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(const SegmentFile* file, Find(stream));
  return file->size();
}

absl::StatusOr<int64_t> LogStore::StoredBytes(const std::string& stream) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(const SegmentFile* file, Find(stream));
  return file->stored_bytes();
}

absl::StatusOr<int64_t> LogStore::TailOffset(const std::string& stream, int lines) {
  constexpr int64_t kLookBack = 1 << 20;
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(const SegmentFile* file, Find(stream));
  if (lines <= 0) return file->size();
  int64_t start = file->SkipHole(std::max<int64_t>(0, file->size() - kLookBack));
  SFT_ASSIGN_OR_RETURN(std::string tail, file->Read(start, kLookBack));
  // Only the part after the last hole.
  while (start + static_cast<int64_t>(tail.size()) < file->size()) {
    start = file->SkipHole(start + static_cast<int64_t>(tail.size()));
    SFT_ASSIGN_OR_RETURN(tail, file->Read(start, kLookBack));
    if (tail.empty()) break;
  }
  // A newline at the very end closes the last line and does not start another.
  size_t at = tail.empty() ? 0 : tail.size() - 1;
  for (; at > 0; --at) {
    if (tail[at - 1] == '\n' && --lines == 0) break;
  }
  return start + static_cast<int64_t>(at);
}

}  // namespace sft::server
