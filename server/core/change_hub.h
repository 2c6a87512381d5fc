#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace sft::server {

// Tells waiting streams that something about a key (a job, a log) has changed. It carries no data:
// who is woken reads the truth again. Thread-safe; must outlive its subscriptions.
class ChangeHub {
 public:
  // Streams that may wait at once: each holds a thread of the server.
  static constexpr int kMaxSubscriptions = 600;

  class Subscription {
   public:
    ~Subscription();
    // Until the key changes after the last Wait (or the subscription), `timeout`, or Shutdown.
    // Returns false at Shutdown.
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
  // Ends all waits, now and later.
  void Shutdown();

 private:
  struct Entry {
    uint64_t version = 0;
    int subscribers = 0;
    CondVar changed;  // of its own: a change wakes those whom it concerns
  };
  Mutex mutex_;
  std::map<std::string, Entry> entries_ SFT_GUARDED_BY(mutex_);  // with subscribers only
  int subscriptions_ SFT_GUARDED_BY(mutex_) = 0;
  bool shut_down_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft::server
