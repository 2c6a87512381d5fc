#pragma once

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace sft::server {

// Threads for work that may wait for the disk, given by one that may not wait.
class Hands {
 public:
  // `name` is that of its threads.
  explicit Hands(int count, const std::string& name = "hands");
  ~Hands() { Stop(); }
  Hands(const Hands&) = delete;

  // Done in the order given, by several at once. Nothing is refused: who gives bounds what waits.
  void Give(std::function<void()> work) SFT_EXCLUDES(mutex_);
  // Returns when all that was given is done.
  void Stop() SFT_EXCLUDES(mutex_);

 private:
  void Loop() SFT_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ SFT_GUARDED_BY(mutex_);
  bool closing_ SFT_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace sft::server
