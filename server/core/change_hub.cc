#include "server/core/change_hub.h"

#include <fmt/format.h>

namespace sft::server {

absl::StatusOr<std::unique_ptr<ChangeHub::Subscription>> ChangeHub::Subscribe(
    std::vector<std::string> keys, std::function<void()> wake) {
  const MutexLock lock(mutex_);
  if (all_.size() >= kMaxSubscriptions) {
    return ResourceExhausted(
        fmt::format("{} streams follow already: end one, or ask without follow", all_.size()));
  }
  std::unique_ptr<Subscription> made(new Subscription(*this, std::move(keys), std::move(wake)));
  all_.insert(made.get());
  Add(*made);
  return made;
}

ChangeHub::Subscription::~Subscription() {
  const MutexLock lock(hub_.mutex_);
  hub_.all_.erase(this);
  hub_.Remove(*this);
}

void ChangeHub::Subscription::SetKeys(std::vector<std::string> keys) {
  const MutexLock lock(hub_.mutex_);
  hub_.Remove(*this);
  keys_ = std::move(keys);
  hub_.Add(*this);
}

void ChangeHub::Add(Subscription& follower) {
  for (const std::string& key : follower.keys_) followers_[key].insert(&follower);
}

void ChangeHub::Remove(Subscription& follower) {
  for (const std::string& key : follower.keys_) {
    const auto found = followers_.find(key);
    if (found == followers_.end()) continue;  // a key that was named twice
    found->second.erase(&follower);
    if (found->second.empty()) followers_.erase(found);
  }
}

void ChangeHub::Bump(const std::string& key) {
  const MutexLock lock(mutex_);
  const auto found = followers_.find(key);
  if (found == followers_.end()) return;
  for (const Subscription* follower : found->second) follower->wake_();
}

void ChangeHub::BumpAll() {
  const MutexLock lock(mutex_);
  for (const Subscription* follower : all_) follower->wake_();
}

void ChangeHub::Shutdown() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  BumpAll();
}

bool ChangeHub::stopped() const {
  const MutexLock lock(mutex_);
  return stopped_;
}

}  // namespace sft::server
