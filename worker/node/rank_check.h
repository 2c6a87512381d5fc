#pragma once

#include <functional>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "worker/base/backoff.h"
#include "worker/node/torch_locator.h"

namespace sft::worker {

// Checks that ranks can start on this node, and with which libraries: when the worker starts, and
// again for as long as they cannot. Thread-safe; Look is called by one thread.
class RankCheck {
 public:
  using Locate = std::function<absl::StatusOr<RankProgram>()>;  // LocateTorch
  explicit RankCheck(Locate locate)
      : locate_(std::move(locate)), backoff_(std::chrono::seconds(2), std::chrono::minutes(5)) {}

  // Checks once; returns the time until the next check.
  Nanos Look();
  // LD_LIBRARY_PATH of ranks, or why they cannot start; waits for the first check.
  absl::StatusOr<std::string> LibraryPath() const;
  // Version and build of the rank program (RankProgram); empty: not known yet, or none starts.
  std::string Build() const;
  // Why nothing may be placed on this node; empty: ranks can start.
  std::string Problem() const;

 private:
  const Locate locate_;
  Backoff backoff_;
  mutable Mutex mutex_;
  mutable CondVar looked_;
  std::optional<absl::StatusOr<RankProgram>> found_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::worker
