#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "client/top/snapshot.h"
#include "common/base/mutex.h"

namespace sft::client::top {

// Asks the server again and again, in a thread of its own, so that keys are answered while the
// server is not. Thread-safe.
class Watch {
 public:
  // Begins to ask for `query`. `connection` is borrowed, and nobody else calls by it meanwhile.
  Watch(Connection& connection, std::chrono::nanoseconds interval, const Query& query);
  // Ends the call under way.
  ~Watch();

  // From now on asks for this; at once.
  void Ask(const Query& query) SFT_EXCLUDES(mutex_);
  // Does that, and then asks at once.
  void Act(const Action& action) SFT_EXCLUDES(mutex_);

  struct News {
    uint64_t number = 0;  // grows with each answer
    std::shared_ptr<const Snapshot> snapshot;
    std::string done;  // what became of the last action; empty: none was ended since
  };
  // The newest answer; `done` once.
  News Latest() SFT_EXCLUDES(mutex_);

 private:
  void Run() SFT_EXCLUDES(mutex_);
  std::string TextOf(const Action& action, const absl::Status& status) const;

  const std::chrono::nanoseconds interval_;
  Calls calls_;
  Mutex mutex_;
  CondVar changed_;
  bool stopped_ SFT_GUARDED_BY(mutex_) = false;
  bool asked_ SFT_GUARDED_BY(mutex_) = true;
  Query query_ SFT_GUARDED_BY(mutex_);
  std::optional<Action> action_ SFT_GUARDED_BY(mutex_);
  News news_ SFT_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace sft::client::top
