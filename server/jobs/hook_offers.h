#pragma once

#include <map>
#include <string>

#include "server/core/job_hooks.h"
#include "server/state/records.h"
#include "server/store/store.h"
#include "sft/v1/job.pb.h"

namespace sft::server {

// Webhooks that are made for jobs that name an address (notify.webhook), in case that there is none
// of it yet. Those that no job took are withdrawn in the end. Lives as long as one call that makes
// jobs.
class HookOffers {
 public:
  // Both borrowed. `hooks` null: no job names one.
  HookOffers(Store& store, JobHooks* hooks) : store_(store), hooks_(hooks) {}
  ~HookOffers();
  HookOffers(const HookOffers&) = delete;
  HookOffers& operator=(const HookOffers&) = delete;

  // Before the job is stored: JobRecord::offered_hook, the same for all jobs with its address. Of
  // the job its project, owner and settings are read.
  absl::Status MakeFor(JobRecord& job);
  // After it was stored: v1::Job::hooks, with the secrets that nobody has been told.
  absl::Status AddTo(v1::Job& job);

 private:
  Store& store_;
  JobHooks* const hooks_;
  std::map<std::string, JobHooks::Offer> offers_;  // by url
};

// v1::Job::hooks, without secrets.
absl::Status AddHooks(Database& db, const std::string& job_id, v1::Job& job);

}  // namespace sft::server
