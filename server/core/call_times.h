#pragma once

#include <map>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/obs/histogram.h"

namespace sft::server {

// How long calls took, by method and how they ended. Those that follow something are not in it:
// they last as long as their caller likes. Thread-safe.
class CallTimes {
 public:
  // Method, "JobService.GetJob", and gRPC code.
  using Kind = std::pair<std::string, absl::StatusCode>;

  void Count(const std::string& method, absl::StatusCode code, Nanos took);
  std::map<Kind, obs::Histogram::Counts> Read() const;

 private:
  mutable Mutex mutex_;
  std::map<Kind, obs::Histogram> times_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
