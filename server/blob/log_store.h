#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/blob/segment_file.h"

namespace sft::server {

// Logs of ranks. Thread-safe. A few streams are kept open; the rest is opened when it is asked for.
//
//   <dir>/<attempt uid>/<node>/prepare/*.seg   `sft-rank prepare` of one node
//   <dir>/<attempt uid>/rank-<r>/*.seg         global rank r
class LogStore {
 public:
  // Streams kept open at once.
  static constexpr size_t kMaxOpen = 64;

  explicit LogStore(std::string dir) : dir_(std::move(dir)) {}

  static std::string RankStream(const std::string& attempt_uid, int rank);
  static std::string PrepareStream(const std::string& attempt_uid, const std::string& node);

  // As SegmentFile::Append. `sync`: the bytes are on the disk when it returns.
  absl::StatusOr<int64_t> Append(const std::string& stream, int64_t offset, std::string_view bytes,
                                 bool sync);
  absl::StatusOr<std::string> Read(const std::string& stream, int64_t offset, int64_t max);
  absl::StatusOr<int64_t> Size(const std::string& stream);
  // Where the last `lines` lines start, with 0 the end; looks at 1 MiB from the end at most.
  absl::StatusOr<int64_t> TailOffset(const std::string& stream, int lines);

 private:
  struct Entry {
    std::string stream;
    SegmentFile file;
  };
  absl::StatusOr<SegmentFile*> Find(const std::string& stream) SFT_REQUIRES(mutex_);

  const std::string dir_;
  Mutex mutex_;
  std::list<Entry> open_ SFT_GUARDED_BY(mutex_);  // last used first
};

}  // namespace sft::server
