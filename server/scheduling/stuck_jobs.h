#pragma once

#include <string>
#include <vector>

#include "server/fleet/worker_registry.h"
#include "server/scheduling/live_jobs.h"
#include "server/state/restart.h"

// Running jobs that do not go on: why, and when a part of one is to be given up.

namespace sft::server {

// A new reason for a job with an attempt, which it does not show yet.
struct Explanation {
  std::string job;
  JobState state = JobState::kRunning;  // of the job
  std::string seen, reason;             // the one it shows, and the new one
  bool is_news = false;                 // an event is written of it
};

// What running jobs are to show anew. `nodes` are all nodes, sorted by name. Inside a transaction
// of the store.
absl::StatusOr<std::vector<Explanation>> ExplainStuckJobs(Database& db,
                                                          const WorkerRegistry& registry,
                                                          const std::vector<LiveJob>& live,
                                                          const std::vector<NodeRecord>& nodes,
                                                          int64_t now_us);

// Whether a part of some attempt has to be looked at for being given up: its node was removed, or
// does not take it up.
bool HasLostParts(const std::vector<LiveJob>& live, const std::vector<NodeRecord>& nodes,
                  int64_t now_us);

// The node has been silent for longer than the job allows. `margin`:
// Reconciler::Options::unreachable_margin.
bool IsGivenUp(const WorkerRegistry::Live& live, const RestartRules& rules, Nanos margin);

// The node was given it and has not said yet that it has it.
bool IsNotTakenUp(const MemberRecord& member);

// Since this wire protocol workers end ranks that the server cannot reach: a part that was given to
// an older one may run on for ever, and is waited for.
inline constexpr int kFencesSince = 2;

}  // namespace sft::server
