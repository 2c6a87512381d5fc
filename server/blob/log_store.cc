#include "server/blob/log_store.h"

#include <fmt/format.h>

#include <algorithm>

namespace sft::server {

std::string LogStore::RankStream(const std::string& attempt_uid, int rank) {
  return fmt::format("{}/rank-{}", attempt_uid, rank);
}

std::string LogStore::PrepareStream(const std::string& attempt_uid, const std::string& node) {
  return fmt::format("{}/{}/prepare", attempt_uid, node);
}

absl::StatusOr<SegmentFile*> LogStore::Find(const std::string& stream) {
  const auto known = std::find_if(open_.begin(), open_.end(),
                                  [&](const Entry& entry) { return entry.stream == stream; });
  if (known != open_.end()) {
    open_.splice(open_.begin(), open_, known);
    return &open_.front().file;
  }
  SFT_ASSIGN_OR_RETURN(SegmentFile file, SegmentFile::Open(dir_ + "/" + stream));
  open_.push_front({stream, std::move(file)});
  if (open_.size() > kMaxOpen) open_.pop_back();
  return &open_.front().file;
}

absl::StatusOr<int64_t> LogStore::Append(const std::string& stream, int64_t offset,
                                         std::string_view bytes, bool sync) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(SegmentFile * file, Find(stream));
  SFT_ASSIGN_OR_RETURN(const int64_t end, file->Append(offset, bytes));
  if (sync) SFT_RETURN_IF_ERROR(file->Sync());
  return end;
}

absl::StatusOr<std::string> LogStore::Read(const std::string& stream, int64_t offset, int64_t max) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(SegmentFile * file, Find(stream));
  return file->Read(offset, max);
}

absl::StatusOr<int64_t> LogStore::Size(const std::string& stream) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(SegmentFile * file, Find(stream));
  return file->size();
}

absl::StatusOr<int64_t> LogStore::TailOffset(const std::string& stream, int lines) {
  constexpr int64_t kLookBack = 1 << 20;
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(SegmentFile * file, Find(stream));
  if (lines <= 0) return file->size();
  const int64_t start = std::max<int64_t>(0, file->size() - kLookBack);
  SFT_ASSIGN_OR_RETURN(const std::string tail, file->Read(start, kLookBack));
  // The newline at the very end closes the last line and starts none.
  size_t at = tail.empty() ? 0 : tail.size() - 1;
  for (; at > 0; --at) {
    if (tail[at - 1] == '\n' && --lines == 0) break;
  }
  return start + static_cast<int64_t>(at);
}

}  // namespace sft::server
