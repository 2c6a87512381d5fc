#include "server/core/change_hub.h"

#include <fmt/format.h>

namespace sft::server {
namespace {

// The list in which a key's change is one; empty: none.
std::string_view ListOf(std::string_view key) {
  if (key.starts_with("log/") || key.starts_with("users/") || key == kFeedKey) return "";
  return key.starts_with("nodes/") ? ChangeHub::kNodes : ChangeHub::kJobs;
}

}  // namespace

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
  Wake(key);
  const std::string_view list = ListOf(key);
  if (list.empty()) return;
  Keep(key);
  Wake(std::string(list));
}

void ChangeHub::Keep(const std::string& key) {
  uint64_t& place = place_of_[key];
  changes_.erase(place);
  place = ++last_place_;
  changes_.emplace(place, key);
  if (changes_.size() <= kMaxChanges) return;
  forgotten_ = changes_.begin()->first;
  place_of_.erase(changes_.begin()->second);
  changes_.erase(changes_.begin());
}

ChangeHub::Changes ChangeHub::ChangesSince(std::string_view list, uint64_t place) const {
  const MutexLock lock(mutex_);
  Changes changes{{}, last_place_, place >= forgotten_ && place <= last_place_};
  for (auto each = changes_.upper_bound(place); each != changes_.end(); ++each) {
    if (ListOf(each->second) == list) changes.keys.push_back(each->second);
  }
  return changes;
}

void ChangeHub::Wake(const std::string& key) {
  const auto found = followers_.find(key);
  if (found == followers_.end()) return;
  for (const Subscription* follower : found->second) follower->wake_();
}

void ChangeHub::Shutdown() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  for (const Subscription* follower : all_) follower->wake_();
}

bool ChangeHub::stopped() const {
  const MutexLock lock(mutex_);
  return stopped_;
}

}  // namespace sft::server
