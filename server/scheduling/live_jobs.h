#pragma once

#include <vector>

#include "server/store/store.h"

namespace sft::server {

// A job with an attempt that is not over.
struct LiveJob {
  JobRecord job;  // with its schedule, without the large texts
  AttemptRecord attempt;
  std::vector<MemberRecord> members;
};

// All of them. Inside a transaction of the store.
absl::StatusOr<std::vector<LiveJob>> LoadLive(Database& db);

}  // namespace sft::server
