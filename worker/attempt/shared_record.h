#pragma once

#include <optional>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/attempt/attempt_context.h"
#include "worker/attempt/attempt_record.h"
#include "worker/attempt/decide.h"
#include "worker/attempt/staging.h"
#include "worker/node/port_lease.h"

namespace sft::worker {

// What the io thread leaves to the main thread for the launch.
struct Prepared {
  std::optional<StagedJob> staged;
  std::string torch_lib_dir;
  PortLease port;
};

// What the threads of one attempt share.
struct AttemptData {
  AttemptRecord record;  // on disk as Save left it
  Wish wish;
  MonoTime heard{};           // as IsAway takes it
  bool server_spoke = false;  // since the io thread's last look
  Prepared prepared;

  // Told to the server.
  AttemptState state = v1::AttemptStatus::STAGING;
  std::string reason;
  bool stuck = false;
  std::string retrying;
  v1::Progress progress;
};

// The attempt's data under its lock, and the record's file. Thread-safe.
class SharedRecord {
 public:
  // `context` is borrowed.
  SharedRecord(AttemptRecord record, const AttemptContext& context);

  // Calls `f` with the data, under the lock; f must not wait.
  template <typename F>
  auto With(F&& f) {
    const MutexLock lock(mutex_);
    return std::forward<F>(f)(data_);
  }
  template <typename F>
  auto With(F&& f) const {
    const MutexLock lock(mutex_);
    return std::forward<F>(f)(std::as_const(data_));
  }

  AttemptRecord record() const;
  AttemptState state() const;
  Wish wish() const;

  // Writes the record as it is now; an error is logged, too.
  absl::Status Save();
  // Another state, or another reason: the server hears of it.
  void Enter(AttemptState state, const std::string& reason = "");
  // The attempt's end, but for what is still to be shipped: saves it, and on to FINISHING.
  void Conclude(const v1::Verdict& verdict);

 private:
  const AttemptContext& context_;
  Mutex save_mutex_;  // from the copy of the record to its file
  mutable Mutex mutex_;
  AttemptData data_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::worker
