#pragma once

#include <map>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace sft::server {

// How many notes of an attempt's ranks become events of its job: so many at once, and then one in
// so long. Each of them is a row that stays as long as the job. Thread-safe.
class NoteLimits {
 public:
  static constexpr int kAtOnce = 500;
  static constexpr std::chrono::seconds kOneIn{5};

  explicit NoteLimits(Clock& clock) : clock_(clock) {}

  enum class Answer { kTake, kLeaveOut, kLeaveOutAndTell };
  // Of one more note; to be told is the first that is left out after some that were taken.
  Answer Take(const std::string& attempt_uid);

 private:
  struct Entry {
    double left = kAtOnce;
    MonoTime at{};
    bool told = false;
  };
  static constexpr size_t kMaxKept = 10'000;
  Clock& clock_;
  Mutex mutex_;
  std::map<std::string, Entry> entries_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
