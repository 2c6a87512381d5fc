#include "server/gangs/node_refusals.h"

#include <spdlog/spdlog.h>

namespace sft::server {

void NodeRefusals::Count(const std::string& node, const absl::Status& why) {
  int64_t since = 0;
  {
    const MutexLock lock(mutex_);
    if (entries_.size() >= kMaxNodes && !entries_.contains(node)) return;
    Entry& entry = entries_[node];
    const MonoTime now = clock_.Mono();
    ++entry.count;
    ++entry.untold;
    if (entry.count > 1 && now - entry.told < kTellAgain) return;
    entry.told = now;
    since = std::exchange(entry.untold, 0);
  }
  spdlog::warn("node {}: refused {} of what it said, the last for: {}", node, since, Message(why));
}

std::map<std::string, int64_t> NodeRefusals::counts() const {
  const MutexLock lock(mutex_);
  std::map<std::string, int64_t> counts;
  for (const auto& [node, entry] : entries_) counts[node] = entry.count;
  return counts;
}

}  // namespace sft::server
