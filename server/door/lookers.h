#pragma once

#include <list>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace sft::server {

// The few threads that look for all followers: at who was woken, in that order, and at nobody by
// two at once. Thread-safe.
class Lookers {
 public:
  static constexpr int kThreads = 4;
  // A follower that was not woken for this long is looked at all the same: a token expires by the
  // clock alone, and a change that woke nobody must not be missed for ever.
  static constexpr std::chrono::seconds kUnasked{10};

  // What is looked at.
  class Task {
   public:
    // In one of the threads; may wait for the disk, but for no caller.
    virtual void Look() = 0;
    // Held from when it was woken until it was looked at.
    virtual void Hold() = 0;
    virtual void Release() = 0;

   protected:
    ~Task() = default;

   private:
    friend class Lookers;
    enum class State { kNew, kResting, kQueued, kLooking, kLookingAgain, kRemoved };
    // Used by Lookers, under its lock.
    State state_ = State::kNew;
    MonoTime rests_since_;
    std::list<Task*>::iterator place_;  // in resting_
  };

  explicit Lookers(Clock& clock) : clock_(clock) {}
  ~Lookers() { Stop(); }
  Lookers(const Lookers&) = delete;

  void Start();
  // When all tasks are removed.
  void Stop() SFT_EXCLUDES(mutex_);

  // Looks at it soon; if it is being looked at, once more after that. The first time it is added,
  // and must then live until it was removed.
  void Wake(Task& task) SFT_EXCLUDES(mutex_);
  // It is looked at no more. Of its own Look.
  void Remove(Task& task) SFT_EXCLUDES(mutex_);

 private:
  void Loop() SFT_EXCLUDES(mutex_);
  void Queue(Task& task) SFT_REQUIRES(mutex_);
  // What has rested for too long is queued.
  void QueueOverdue() SFT_REQUIRES(mutex_);
  // After a look. True: to be released.
  bool Rest(Task& task) SFT_REQUIRES(mutex_);

  Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  std::list<Task*> queued_ SFT_GUARDED_BY(mutex_), resting_ SFT_GUARDED_BY(mutex_);
  int idle_ SFT_GUARDED_BY(mutex_) = 0;  // threads that wait for work
  bool closing_ SFT_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace sft::server
