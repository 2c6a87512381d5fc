#pragma once

#include <functional>
#include <list>
#include <string>
#include <thread>

#include "common/base/mutex.h"

namespace sft::worker {

// Runs each task on a thread of its own. Thread-safe.
class TaskThreads {
 public:
  // `name`: of the threads.
  explicit TaskThreads(std::string name) : name_(std::move(name)) {}
  // Waits for the tasks under way.
  ~TaskThreads();
  TaskThreads(const TaskThreads&) = delete;
  TaskThreads& operator=(const TaskThreads&) = delete;

  // The task is told how many others are under way. With more than `most` others it is not run.
  void Start(size_t most, std::function<void(size_t others)> task);

 private:
  struct Running {
    std::thread thread;
    bool done = false;
  };
  // Joins the threads that have ended.
  void Reap() SFT_REQUIRES(mutex_);

  const std::string name_;
  Mutex mutex_;
  std::list<Running> running_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::worker
