#include "server/sched/profile.h"

#include <algorithm>
#include <iterator>

namespace sft::server::sched {

void Profile::Take(int64_t from, int64_t to, int count) {
  from = std::max(from, steps_.front().time);
  if (to <= from) return;
  // Splits the steps at exactly `from` and `to`.
  const auto split = [this](int64_t time) {
    const auto after =
        std::upper_bound(steps_.begin(), steps_.end(), time,
                         [](int64_t at, const Step& step) { return at < step.time; });
    const auto index = after - steps_.begin();
    if (steps_[index - 1].time == time) return index - 1;
    steps_.insert(after, {time, steps_[index - 1].free});
    return index;
  };
  const auto first = split(from);
  const auto last = to >= kForever ? static_cast<std::ptrdiff_t>(steps_.size()) : split(to);
  for (auto i = first; i < last; ++i) steps_[i].free -= count;
  // Merge equal steps, so that giving back what was taken leaves no trace.
  const auto same = [](const Step& a, const Step& b) { return a.free == b.free; };
  const auto begin = steps_.begin() + std::max<std::ptrdiff_t>(first - 1, 0);
  const auto end = steps_.begin() + std::min<std::ptrdiff_t>(last + 1, steps_.size());
  steps_.erase(std::unique(begin, end, same), end);
}

int64_t Profile::Earliest(int64_t from, int64_t duration, int count) const {
  int64_t begin = -1;  // start of the interval that has been free so far
  for (size_t i = 0; i < steps_.size(); ++i) {
    const int64_t end = i + 1 < steps_.size() ? steps_[i + 1].time : kForever;
    if (end <= from) continue;
    if (steps_[i].free < count) {
      begin = -1;
      continue;
    }
    if (begin < 0) begin = std::max(from, steps_[i].time);
    if (end == kForever || end - begin >= duration) return begin;
  }
  return kForever;
}

int Profile::FreeAt(int64_t time) const {
  const auto after = std::upper_bound(steps_.begin(), steps_.end(), time,
                                      [](int64_t at, const Step& step) { return at < step.time; });
  return after == steps_.begin() ? steps_.front().free : std::prev(after)->free;
}

int64_t Profile::FreeSince(int64_t time, int count) const {
  int64_t since = time;
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    if (step->time > time) continue;
    if (step->free < count) break;
    since = step->time;
  }
  return since;
}

}  // namespace sft::server::sched
