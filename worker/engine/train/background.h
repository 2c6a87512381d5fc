#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

namespace sft::engine {

// Runs one piece of work at a time on a thread of its own. Thread-compatible: one thread owns it.
class Background {
 public:
  // Looks at `cancelled` now and then, and throws when it is true. What it throws is error().
  using Work = std::function<void(const std::atomic<bool>& cancelled)>;

  Background() = default;
  ~Background() { Cancel(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Waits for the work before.
  void Start(Work work);
  // True once the last work has ended.
  bool done() const { return done_; }
  void Wait();
  // Asks the work to end and waits for it.
  void Cancel();
  // The error that ended the last work early, "" if it ended well. Read it once the work is done.
  const std::string& error() const { return error_; }

 private:
  std::thread thread_;
  std::string error_;  // the thread's until done_
  std::atomic<bool> done_ = true, cancelled_ = false;
};

}  // namespace sft::engine
