#pragma once

#include <map>
#include <optional>
#include <string>

#include "common/base/mutex.h"
#include "sft/v1/job.pb.h"

namespace sft::server {

// The expected start and end of each job that has not ended, from the scheduler's last decision.
// They change all the time and are recomputed after a restart, so they are not stored. Thread-safe.
class Outlooks {
 public:
  using Map = std::map<std::string, v1::Outlook>;  // by job

  void Replace(Map outlooks) SFT_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    outlooks_ = std::move(outlooks);
  }
  std::optional<v1::Outlook> Of(const std::string& job) const SFT_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto found = outlooks_.find(job);
    if (found == outlooks_.end()) return std::nullopt;
    return found->second;
  }

 private:
  mutable Mutex mutex_;
  Map outlooks_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
