#include "server/gangs/note_limits.h"

#include <algorithm>
#include <utility>

namespace sft::server {

NoteLimits::Answer NoteLimits::Take(const std::string& attempt_uid) {
  const MutexLock lock(mutex_);
  const MonoTime now = clock_.Mono();
  const auto refill = [&](Entry& entry) {
    const auto passed = std::chrono::duration<double>(now - entry.at) / kOneIn;
    entry.left = std::min<double>(kAtOnce, entry.left + passed);
    entry.at = now;
  };
  if (entries_.size() >= kMaxKept && !entries_.contains(attempt_uid)) {
    for (auto& [uid, entry] : entries_) refill(entry);
    std::erase_if(entries_, [](const auto& each) { return each.second.left >= kAtOnce; });
  }
  Entry& entry = entries_.try_emplace(attempt_uid, Entry{.at = now}).first->second;
  refill(entry);
  if (entry.left < 1) {
    return std::exchange(entry.told, true) ? Answer::kLeaveOut : Answer::kLeaveOutAndTell;
  }
  entry.left -= 1;
  // A trickle is not told of again and again.
  if (entry.left >= kAtOnce / 2) entry.told = false;
  return Answer::kTake;
}

}  // namespace sft::server
