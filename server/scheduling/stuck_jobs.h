#pragma once

#include <string>
#include <vector>

#include "server/fleet/worker_registry.h"
#include "server/scheduling/live_jobs.h"
#include "server/state/restart.h"

// Running jobs that make no progress: the reason, and when a node's part is to be given up.

namespace sft::server {

// A new reason for a job with an attempt, not shown yet.
struct Explanation {
  std::string job;
  JobState state = JobState::kRunning;  // of the job
  std::string seen, reason;             // the reason it shows, and the new one
  bool is_news = false;                 // an event is written about it
};

// New reasons for running jobs. `nodes` are all nodes, sorted by name. Inside a transaction of the
// store.
absl::StatusOr<std::vector<Explanation>> ExplainStuckJobs(Database& db,
                                                          const WorkerRegistry& registry,
                                                          const std::vector<LiveJob>& live,
                                                          const std::vector<NodeRecord>& nodes,
                                                          int64_t now_us);

// True when some attempt may have a part to give up: its node was removed, or does not take it up.
bool HasLostParts(const std::vector<LiveJob>& live, const std::vector<NodeRecord>& nodes,
                  int64_t now_us);

// The node has been silent for longer than the job allows. `margin`:
// Reconciler::Options::unreachable_margin.
bool IsGivenUp(const WorkerRegistry::Live& live, const RestartRules& rules, Nanos margin);

// The node was sent the part and has not reported yet that it has it.
bool IsNotTakenUp(const MemberRecord& member);

// From this wire protocol on, workers end ranks that the server cannot reach. A part given to an
// older worker may run on for ever, and is waited for.
inline constexpr int kFencesSince = 2;

}  // namespace sft::server
