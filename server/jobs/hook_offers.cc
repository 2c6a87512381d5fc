#include "server/jobs/hook_offers.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "server/core/convert.h"
#include "server/state/names.h"
#include "server/store/webhooks.h"

namespace sft::server {

HookOffers::~HookOffers() {
  for (const auto& [url, offer] : offers_) {
    const absl::Status taken =
        store_.Read([&](Database& db) { return store::FindWebhook(db, offer.id).status(); });
    // Where that cannot be read it is kept: what nobody took is tidied up later.
    if (!absl::IsNotFound(taken)) continue;
    const absl::Status withdrawn = hooks_->Withdraw(offer);
    if (!withdrawn.ok()) spdlog::warn("secret of a webhook: {}", Message(withdrawn));
  }
}

absl::Status HookOffers::MakeFor(JobRecord& job) {
  if (hooks_ == nullptr || !job.spec.has_value()) return absl::OkStatus();
  const std::string& url = job.spec->notify.webhook;
  if (url.empty()) return absl::OkStatus();
  auto found = offers_.find(url);
  if (found == offers_.end()) {
    std::string known;
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(known, store::FindAddress(db, job.project, job.owner, url));
      return absl::OkStatus();
    }));
    if (!known.empty()) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(JobHooks::Offer offer, hooks_->Make());
    found = offers_.emplace(url, std::move(offer)).first;
  }
  job.offered_hook = found->second.id;
  return absl::OkStatus();
}

absl::Status HookOffers::AddTo(v1::Job& job) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(job.name()));
  job.clear_hooks();
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) { return AddHooks(db, ref.id, job); }));
  for (v1::JobHook& hook : *job.mutable_hooks()) {
    const auto found = offers_.find(hook.url());
    if (found == offers_.end() || found->second.id != hook.webhook()) continue;
    hook.set_secret(std::exchange(found->second.secret, ""));
  }
  return absl::OkStatus();
}

absl::Status AddHooks(Database& db, const std::string& job_id, v1::Job& job) {
  SFT_ASSIGN_OR_RETURN(const auto hooks, store::HooksOfJob(db, job_id));
  for (const store::JobHookRecord& record : hooks) {
    v1::JobHook& added = *job.add_hooks();
    added.set_webhook(record.hook.id);
    added.set_url(record.hook.url);
    for (const std::string& event : record.events) added.add_events(event);
    if (record.hook.off_us > 0) *added.mutable_off_time() = ToTimestamp(record.hook.off_us);
    added.set_off_reason(record.hook.off_reason);
    added.set_failures(record.hook.failures);
    if (record.hook.delivered_us > 0) {
      *added.mutable_last_delivery_time() = ToTimestamp(record.hook.delivered_us);
    }
  }
  return absl::OkStatus();
}

}  // namespace sft::server
