#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "common/base/clock.h"

namespace sft::sim {

// What is going to happen, by time; events of one time in the order in which they were put in. One
// thread; nothing else moves time.
class EventQueue {
 public:
  using Action = std::function<void()>;

  Nanos now() const { return now_; }
  int64_t done() const { return done_; }
  bool empty() const { return events_.empty(); }

  void At(Nanos time, Action action) {
    events_.push({std::max(time, now_), next_++, std::move(action)});
  }
  void After(Nanos delay, Action action) { At(now_ + delay, std::move(action)); }

  // Moves time to the next event and runs it.
  void RunNext() {
    Event event = events_.top();
    events_.pop();
    now_ = event.time;
    ++done_;
    event.action();
  }

 private:
  struct Event {
    Nanos time;
    int64_t order;
    Action action;
    bool operator<(const Event& other) const {
      return std::pair(other.time, other.order) < std::pair(time, order);
    }
  };
  std::priority_queue<Event> events_;
  Nanos now_{0};
  int64_t next_ = 0, done_ = 0;
};

// The clocks of one machine: monotonic time is the simulation's, wall time may be set.
class MachineClock : public Clock {
 public:
  explicit MachineClock(const EventQueue& events) : events_(events) {}
  WallTime Wall() const override {
    return WallTime(std::chrono::seconds(1'700'000'000) + events_.now() + offset_);
  }
  MonoTime Mono() const override { return MonoTime(std::chrono::seconds(1'000) + events_.now()); }
  // Nothing that is simulated may wait.
  void Sleep(Nanos) override { std::abort(); }
  void JumpWall(Nanos by) { offset_ += by; }

 private:
  const EventQueue& events_;
  Nanos offset_{0};
};

}  // namespace sft::sim
