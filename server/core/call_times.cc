#include "server/core/call_times.h"

#include "common/base/duration.h"

namespace sft::server {

void CallTimes::Count(const std::string& method, absl::StatusCode code, Nanos took) {
  const MutexLock lock(mutex_);
  times_.try_emplace({method, code}).first->second.Observe(SecondsOf(took));
}

std::map<CallTimes::Kind, obs::Histogram::Counts> CallTimes::Read() const {
  const MutexLock lock(mutex_);
  std::map<Kind, obs::Histogram::Counts> read;
  for (const auto& [kind, times] : times_) read.emplace(kind, times.Read());
  return read;
}

}  // namespace sft::server
