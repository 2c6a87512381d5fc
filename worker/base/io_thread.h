#pragma once

#include <functional>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace sft::worker {

// A thread that calls `work` repeatedly: after the time that `work` returned, or at once when Wake
// was called meanwhile. The destructor ends it after the current call.
class IoThread {
 public:
  IoThread(const std::string& name, std::function<Nanos()> work);
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  void Wake();

 private:
  void Loop();

  const std::function<Nanos()> work_;
  Mutex mutex_;
  CondVar changed_;
  bool woken_ SFT_GUARDED_BY(mutex_) = false;
  bool ending_ SFT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sft::worker
