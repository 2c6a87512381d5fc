#include "server/webhooks/job_addresses.h"

#include "common/base/ids.h"
#include "server/store/webhooks.h"

namespace sft::server {

std::string JobAddresses::Problem(const std::string& url) {
  const MonoTime now = clock_.Mono();
  {
    const MutexLock lock(mutex_);
    const auto found = held_.find(url);
    if (found != held_.end() && now < found->second.until) return found->second.problem;
  }
  const absl::Status checked = guard_.Check(url).status();
  std::string problem(Message(checked));
  if (absl::IsUnavailable(checked)) return problem;  // its name may be found the next time
  const MutexLock lock(mutex_);
  if (held_.size() >= kMostHeld) held_.clear();
  held_[url] = {now + kHolds, problem};
  return problem;
}

absl::StatusOr<JobHooks::Offer> JobAddresses::Make() {
  Offer offer{RandomId("hook"), MakeWebhookSecret()};
  SFT_RETURN_IF_ERROR(secrets_.Put(offer.id, offer.secret, UnixMicros(clock_.Wall())));
  return offer;
}

absl::Status JobAddresses::Withdraw(const Offer& offer) { return secrets_.Remove(offer.id); }

absl::Status JobAddresses::Tidy() {
  const int64_t before_us = UnixMicros(clock_.Wall() - kKeep);
  SFT_RETURN_IF_ERROR(
      store_.Write([&](Database& db) { return store::ForgetIdleAddresses(db, before_us); }));
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> kept, secrets_.List());
  std::set<std::string> unknown(kept.begin(), kept.end());
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const auto hooks, store::ListWebhooks(db, std::nullopt));
    for (const store::WebhookRecord& hook : hooks) unknown.erase(hook.id);
    return absl::OkStatus();
  }));
  for (const std::string& id : unknown) {
    // The first time it may be one that is just being added.
    if (unknown_.contains(id)) SFT_RETURN_IF_ERROR(secrets_.Remove(id));
  }
  unknown_ = std::move(unknown);
  return absl::OkStatus();
}

}  // namespace sft::server
