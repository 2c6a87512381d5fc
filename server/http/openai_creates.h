#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace sft::server {

// Creations under way, so that one that is asked for again waits for what came of it the first time
// and does not make another. Thread-safe.
class OpenAiCreates {
 public:
  // One of them, while it lives.
  class Place {
   public:
    Place(OpenAiCreates& creates, std::string key) : creates_(creates), key_(std::move(key)) {
      const MutexLock lock(creates_.mutex_);
      creates_.running_.insert(key_);
    }
    ~Place() {
      const MutexLock lock(creates_.mutex_);
      creates_.running_.erase(creates_.running_.find(key_));
      creates_.ended_.NotifyAll();
    }
    Place(const Place&) = delete;

   private:
    OpenAiCreates& creates_;
    const std::string key_;
  };

  // Returns once none with this key runs, or when `gone` says that nobody waits any more.
  void Await(const std::string& key, const std::function<bool()>& gone) {
    const MutexLock lock(mutex_);
    while (running_.contains(key) && !gone()) ended_.WaitFor(mutex_, kSeesGone);
  }

 private:
  static constexpr Nanos kSeesGone = std::chrono::milliseconds(200);

  Mutex mutex_;
  CondVar ended_;
  std::multiset<std::string> running_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
