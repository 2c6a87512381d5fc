#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace sft::server::sched {

inline constexpr int64_t kForever = std::numeric_limits<int64_t>::max() / 4;

// The number of free slots of a node as a step function of time, from a first moment on for ever.
class Profile {
 public:
  Profile(int64_t from, int free) : steps_{{from, free}} {}

  // Takes `count` slots in [from, to), or gives them back when negative.
  void Take(int64_t from, int64_t to, int count);
  // The first time, not before `from`, at which `count` slots are free for `duration`; kForever:
  // never.
  int64_t Earliest(int64_t from, int64_t duration, int count) const;
  int FreeAt(int64_t time) const;
  // The time since which `count` slots have been free without a break at `time`, where they are.
  int64_t FreeSince(int64_t time, int count) const;
  int FreeNow() const { return steps_.front().free; }
  // Calls add(first, last) for each interval of start times at which `count` slots are free for
  // `duration`.
  template <typename Add>
  void Starts(int64_t duration, int count, Add&& add) const;

 private:
  struct Step {
    int64_t time;
    int free;
  };
  std::vector<Step> steps_;  // by time; each holds until the next
};

template <typename Add>
void Profile::Starts(int64_t duration, int count, Add&& add) const {
  for (size_t i = 0; i < steps_.size();) {
    if (steps_[i].free < count) {
      ++i;
      continue;
    }
    const int64_t begin = steps_[i].time;
    while (i < steps_.size() && steps_[i].free >= count) ++i;
    const int64_t end = i < steps_.size() ? steps_[i].time : kForever;
    if (end == kForever) {
      add(begin, kForever);
    } else if (end - begin >= duration) {
      add(begin, end - duration);
    }
  }
}

}  // namespace sft::server::sched
