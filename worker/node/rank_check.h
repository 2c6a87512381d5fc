#pragma once

#include <functional>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "worker/base/backoff.h"

namespace sft::worker {

// Whether ranks start on this node, and with which libraries: looked at when the worker starts, and
// again for as long as they do not. Thread-safe; Look is called by one thread.
class RankCheck {
 public:
  using Locate = std::function<absl::StatusOr<std::string>()>;  // LocateTorch
  explicit RankCheck(Locate locate)
      : locate_(std::move(locate)), backoff_(std::chrono::seconds(2), std::chrono::minutes(5)) {}

  // One look; the time until the next one.
  Nanos Look();
  // LD_LIBRARY_PATH of ranks, or why none starts; waits for the first look.
  absl::StatusOr<std::string> LibraryPath() const;
  // Why nothing may be placed on this node; empty: ranks start.
  std::string Problem() const;

 private:
  const Locate locate_;
  Backoff backoff_;
  mutable Mutex mutex_;
  mutable CondVar looked_;
  std::optional<absl::StatusOr<std::string>> found_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::worker
