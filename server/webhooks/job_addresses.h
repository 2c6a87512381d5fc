#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/core/job_hooks.h"
#include "server/store/store.h"
#include "server/webhooks/address_guard.h"
#include "server/webhooks/webhook_secrets.h"

namespace sft::server {

// Addresses that jobs name. They are webhooks of their project; jobs of one owner share them.
// Thread-safe.
class JobAddresses final : public JobHooks {
 public:
  // So long an answer about an address holds: a sweep has a thousand jobs with the same one, and
  // each delivery is checked anyway.
  static constexpr std::chrono::minutes kHolds{1};
  static constexpr size_t kMostHeld = 1000;
  // So long an address stays after the last of its jobs has ended and been told.
  static constexpr Nanos kKeep = std::chrono::hours(30 * 24);

  // Borrowed, but for the guard.
  JobAddresses(Store& store, Clock& clock, const WebhookSecrets& secrets, AddressGuard guard)
      : store_(store), clock_(clock), secrets_(secrets), guard_(std::move(guard)) {}

  std::string Problem(const std::string& url) override;
  absl::StatusOr<Offer> Make() override;
  absl::Status Withdraw(const Offer& offer) override;

  // Removes addresses whose jobs ended long ago, and the secrets of webhooks that are not there at
  // two calls in a row. Called by one thread.
  absl::Status Tidy();

 private:
  struct Held {
    MonoTime until;
    std::string problem;
  };

  Store& store_;
  Clock& clock_;
  const WebhookSecrets& secrets_;
  const AddressGuard guard_;
  Mutex mutex_;
  std::map<std::string, Held> held_ SFT_GUARDED_BY(mutex_);  // by url
  std::set<std::string> unknown_;                            // what Tidy found last
};

}  // namespace sft::server
