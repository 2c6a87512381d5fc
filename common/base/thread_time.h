#pragma once

#include <pthread.h>

#include <ctime>

#include "common/base/clock.h"

namespace sft {

// The CPU time that one thread has used, readable from another thread; time while the machine is
// busy or suspended does not count. The thread must be alive.
class ThreadTime {
 public:
  static ThreadTime OfThisThread() {
    ThreadTime time;
    pthread_getcpuclockid(pthread_self(), &time.clock_);
    return time;
  }
  Nanos Used() const {
    timespec used{};
    clock_gettime(clock_, &used);
    return std::chrono::seconds(used.tv_sec) + Nanos(used.tv_nsec);
  }

 private:
  clockid_t clock_ = CLOCK_THREAD_CPUTIME_ID;
};

}  // namespace sft
