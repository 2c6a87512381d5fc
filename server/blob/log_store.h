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

// How much of the logs is kept. What goes is the middle: a log keeps its first mebibyte, which says
// how the run was set up, and its newest bytes, which say how it ended.
struct LogLimits {
  int64_t log_bytes = int64_t{256} << 20;  // of one log; 0: no limit
  int64_t job_bytes = int64_t{4} << 30;    // of all logs of a job, all attempts; 0: no limit
};

// Logs of ranks. Thread-safe. A few streams are kept open; the rest is opened when it is asked for.
// The files are the queue between writers and readers: a reader that does not keep up blocks nobody
// and finds a hole where the limits took what it had not read.
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

  // What a writer hands in.
  struct Piece {
    int64_t offset = 0;
    std::string_view bytes;
    // Bytes from here to `offset` will never come; -1: none are missing.
    int64_t skipped_from = -1;
    bool sync = false;  // the bytes are on the disk when Append returns
  };
  struct Appended {
    int64_t end = 0;       // the offset it wants next
    bool started = false;  // a new segment: time to look at the limit of the job
  };
  // As SegmentFile::Append; keeps the limit of a log.
  absl::StatusOr<Appended> Append(const std::string& stream, const Piece& piece);
  // Keeps the limit of the job that has these attempts: its largest log loses first.
  absl::Status TrimJob(const std::vector<std::string>& attempt_uids);

  // Removes all logs of an attempt that is over; missing is OK.
  absl::Status Remove(const std::string& attempt_uid);

  // Bytes that are there from `offset` on: where `offset` lies in a hole, those after it.
  struct Chunk {
    int64_t offset = 0;
    std::string bytes;
  };
  // Empty at the end; OUT_OF_RANGE beyond it.
  absl::StatusOr<Chunk> Read(const std::string& stream, int64_t offset, int64_t max);
  absl::StatusOr<int64_t> Size(const std::string& stream);
  // What lies on the disk of it.
  absl::StatusOr<int64_t> StoredBytes(const std::string& stream);
  // Where the last `lines` lines start, with 0 the end; looks at 1 MiB from the end at most.
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
  std::list<Entry> open_ SFT_GUARDED_BY(mutex_);  // last used first
};

}  // namespace sft::server
