#include "server/core/change_hub.h"

#include <fmt/format.h>

namespace sft::server {

absl::StatusOr<std::unique_ptr<ChangeHub::Subscription>> ChangeHub::Subscribe(
    const std::string& key) {
  MutexLock lock(mutex_);
  if (subscriptions_ >= kMaxSubscriptions) {
    return ResourceExhausted(
        fmt::format("{} streams follow already: end one, or ask without follow", subscriptions_));
  }
  ++subscriptions_;
  Entry& entry = entries_[key];
  ++entry.subscribers;
  std::unique_ptr<Subscription> subscription(new Subscription(*this, key));
  subscription->seen_ = entry.version;
  return subscription;
}

ChangeHub::Subscription::~Subscription() {
  MutexLock lock(hub_.mutex_);
  --hub_.subscriptions_;
  const auto entry = hub_.entries_.find(key_);
  if (--entry->second.subscribers == 0) hub_.entries_.erase(entry);
}

bool ChangeHub::Subscription::Wait(Nanos timeout) {
  MutexLock lock(hub_.mutex_);
  Entry& entry = hub_.entries_.at(key_);
  // A spurious wake-up ends the wait early: the caller checks again.
  if (entry.version == seen_ && !hub_.shut_down_) entry.changed.WaitFor(hub_.mutex_, timeout);
  seen_ = entry.version;
  return !hub_.shut_down_;
}

void ChangeHub::Bump(const std::string& key) {
  MutexLock lock(mutex_);
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return;
  ++entry->second.version;
  entry->second.changed.NotifyAll();
}

void ChangeHub::Shutdown() {
  MutexLock lock(mutex_);
  shut_down_ = true;
  for (auto& [key, entry] : entries_) entry.changed.NotifyAll();
}

}  // namespace sft::server
