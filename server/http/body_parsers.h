#pragma once

#include "common/base/mutex.h"

namespace sft::server {

// Lets few bodies be parsed at a time: a tree of JSON takes many times the memory of its text.
// Thread-safe.
class BodyParsers {
 public:
  static constexpr int kMost = 4;

  // Parses in the calling thread, once there is a place. `parse` must not wait.
  template <typename Parse>
  auto Run(const Parse& parse) {
    const Place place(*this);
    return parse();
  }

 private:
  class Place {
   public:
    explicit Place(BodyParsers& parsers) : parsers_(parsers) {
      const MutexLock lock(parsers_.mutex_);
      while (parsers_.running_ >= kMost) parsers_.left_.Wait(parsers_.mutex_);
      ++parsers_.running_;
    }
    ~Place() {
      const MutexLock lock(parsers_.mutex_);
      --parsers_.running_;
      parsers_.left_.NotifyOne();
    }
    Place(const Place&) = delete;

   private:
    BodyParsers& parsers_;
  };

  Mutex mutex_;
  CondVar left_;
  int running_ SFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace sft::server
