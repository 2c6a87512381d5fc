#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace sft::server {

// Notifies waiting streams that something about a key (a job, a log) has changed. It carries no
// data: a woken stream reads the current state again. Thread-safe; must outlive its subscriptions.
class ChangeHub {
 public:
  // The most streams waiting at once: each holds a thread of the server.
  static constexpr int kMaxSubscriptions = 600;

  class Subscription {
   public:
    ~Subscription();
    // Waits until the key changes after the last Wait (or the subscription), until `timeout`, or
    // until Shutdown. Returns false at Shutdown.
    bool Wait(Nanos timeout);

   private:
    friend class ChangeHub;
    Subscription(ChangeHub& hub, std::string key) : hub_(hub), key_(std::move(key)) {}
    ChangeHub& hub_;
    const std::string key_;
    uint64_t seen_ = 0;
  };

  // RESOURCE_EXHAUSTED at the limit.
  absl::StatusOr<std::unique_ptr<Subscription>> Subscribe(const std::string& key);
  void Bump(const std::string& key);
  // Ends all waits, present and future.
  void Shutdown();

 private:
  struct Entry {
    uint64_t version = 0;
    int subscribers = 0;
    CondVar changed;  // one per subscription: a change wakes only those waiting for its key
  };
  Mutex mutex_;
  std::map<std::string, Entry> entries_ SFT_GUARDED_BY(mutex_);  // only keys with subscribers
  int subscriptions_ SFT_GUARDED_BY(mutex_) = 0;
  bool shut_down_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft::server
