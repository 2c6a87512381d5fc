#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

// Annotated wrappers over std::mutex: clang's thread-safety analysis checks them, and thread
// sanitizer understands them (it reports false races on the distribution's absl::Mutex).
#if defined(__clang__)
#define SFT_TSA(x) __attribute__((x))
#else
#define SFT_TSA(x)
#endif
#define SFT_GUARDED_BY(m) SFT_TSA(guarded_by(m))
#define SFT_REQUIRES(...) SFT_TSA(requires_capability(__VA_ARGS__))
#define SFT_EXCLUDES(...) SFT_TSA(locks_excluded(__VA_ARGS__))

namespace sft {

// A mutual exclusion lock.
class SFT_TSA(capability("mutex")) Mutex {
 public:
  void lock() SFT_TSA(acquire_capability()) { mutex_.lock(); }
  void unlock() SFT_TSA(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a Mutex while it lives.
class SFT_TSA(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SFT_TSA(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() SFT_TSA(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable. Every wait is a loop over its condition: `while (!ready_)
// cv_.Wait(mutex_);`
class CondVar {
 public:
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }
  void Wait(Mutex& mutex) SFT_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False when `timeout` passed without a notification.
  bool WaitFor(Mutex& mutex, std::chrono::nanoseconds timeout) SFT_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool notified = cv_.wait_for(lock, timeout) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }

 private:
  std::condition_variable cv_;
};

}  // namespace sft
