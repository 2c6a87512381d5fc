#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/blob/segment_file.h"

namespace sft::server {

// Retention limits of logs. The middle is removed: a log keeps its first mebibyte, which shows how
// the run was set up, and its newest bytes, which show how it ended.
struct LogLimits {
  int64_t log_bytes = int64_t{256} << 20;  // per log; 0: no limit
  int64_t job_bytes = int64_t{4} << 30;    // all logs of a job, over all attempts; 0: no limit
};

// Store of the ranks' logs. Thread-safe. A few streams are kept open; others are opened on demand.
// The files are the queue between writers and readers: a slow reader blocks nobody, and finds a
// hole where the limits removed what it had not read.
//
//   <dir>/<attempt uid>/<node>/prepare/*.seg   `sft-rank prepare` of one node
//   <dir>/<attempt uid>/rank-<r>/*.seg         global rank r
class LogStore {
 public:
  // Streams kept open at once.
  static constexpr size_t kMaxOpen = 64;

  explicit LogStore(std::string dir, LogLimits limits = {});

  static std::string RankStream(const std::string& attempt_uid, int rank);
  static std::string PrepareStream(const std::string& attempt_uid, const std::string& node);

  // One write.
  struct Piece {
    int64_t offset = 0;
    std::string_view bytes;
    // Bytes from here to `offset` are lost; -1: none are missing.
    int64_t skipped_from = -1;
    bool sync = false;  // make the bytes durable before Append returns
  };
  struct Appended {
    int64_t end = 0;       // the offset expected next
    bool started = false;  // a new segment was begun: time to check the job's limit
  };
  // As SegmentFile::Append; enforces the log's own limit.
  absl::StatusOr<Appended> Append(const std::string& stream, const Piece& piece);
  // Enforces the limit of the job that has these attempts: its largest log is trimmed first.
  absl::Status TrimJob(const std::vector<std::string>& attempt_uids);

  // Removes all logs of an ended attempt; OK if there are none.
  absl::Status Remove(const std::string& attempt_uid);

  // Bytes that exist from `offset` on; where `offset` lies in a hole, those after the hole.
  struct Chunk {
    int64_t offset = 0;
    std::string bytes;
  };
  // Empty at the end; OUT_OF_RANGE beyond it.
  absl::StatusOr<Chunk> Read(const std::string& stream, int64_t offset, int64_t max);
  absl::StatusOr<int64_t> Size(const std::string& stream);
  // Bytes of the stream that are on the disk.
  absl::StatusOr<int64_t> StoredBytes(const std::string& stream);
  // The offset at which the last `lines` lines start, with 0 the end; searches at most the last 1
  // MiB.
  absl::StatusOr<int64_t> TailOffset(const std::string& stream, int lines);

 private:
  struct Entry {
    std::string stream;
    SegmentFile file;
  };
  absl::StatusOr<SegmentFile*> Find(const std::string& stream) SFT_REQUIRES(mutex_);
  absl::StatusOr<std::vector<std::string>> StreamsOf(const std::string& attempt_uid) const;

  const std::string dir_;
  const LogLimits limits_;
  const SegmentFile::Shape shape_;
  Mutex mutex_;
  std::list<Entry> open_ SFT_GUARDED_BY(mutex_);  // least recently used first
};

}  // namespace sft::server
