#pragma once

#include <vector>

#include "server/state/records.h"
#include "server/store/store.h"

namespace sft::server {

// A job with an attempt that has not ended.
struct LiveJob {
  JobRecord job;  // with its schedule, without the large texts
  AttemptRecord attempt;
  std::vector<MemberRecord> members;
};

// Loads all of them. Inside a transaction of the store.
absl::StatusOr<std::vector<LiveJob>> LoadLive(Database& db);

}  // namespace sft::server
