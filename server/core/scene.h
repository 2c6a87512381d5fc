#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/core/worker_registry.h"
#include "server/sched/decide.h"
#include "server/sched/resume_policy.h"
#include "server/state/records.h"
#include "server/state/restart.h"
#include "server/store/sqlite.h"

// What the scheduler goes by, of one moment. Reading it changes nothing, so that others go on
// storing meanwhile; what is stored by then is checked again where it matters
// (Reconciler::StillStands).

namespace sft::server {

// A job with an attempt that is not over.
struct LiveJob {
  JobRecord job;  // with its schedule, without the large texts
  AttemptRecord attempt;
  std::vector<MemberRecord> members;
};

// What a job with an attempt says now, and has not said yet.
struct Explanation {
  std::string job;
  JobState state = JobState::kRunning;  // of the job
  std::string seen, reason;             // the one it has, and this one
  bool is_news = false;                 // an event is written of it
};

// All of it.
struct Scene {
  // Pending jobs of each slot type and project that are looked at, the first of their line: a later
  // one could start only past all of these.
  static constexpr int kMaxPending = 1000;

  std::vector<NodeRecord> nodes;
  std::vector<JobRecord> pending;  // with their schedules, without the large texts
  std::vector<LiveJob> live;
  // Of these, the nodes as they may be used, and the pending jobs that may be placed now.
  sched::Snapshot snapshot;
  std::map<std::string, Reservation> promises;  // by job
  // What those of them go on from that do not begin at step 0.
  std::map<std::string, sched::ResumeChoice> choices;
  // Pending jobs after others that have ended since, and those that have nothing left to go on
  // from.
  std::vector<JobRecord> released, stranded;
  std::vector<Explanation> explanations;
  // Time alone will change something.
  bool waits_for_time = false;
  // What has to be stored of nodes before anything else: MindNodes.
  bool nodes_changed = false;
};

// `margin`: Reconciler::Options::unreachable_margin.
absl::StatusOr<Scene> ReadScene(Database& db, const WorkerRegistry& registry, int64_t now_us,
                                Nanos margin);

// What a pending job goes on from, of what can be reached.
absl::StatusOr<sched::ResumeChoice> ChooseFor(Database& db, const WorkerRegistry& registry,
                                              const JobRecord& job, Nanos margin);
// Silent for longer than the job allows.
bool IsGivenUp(const WorkerRegistry::Live& live, const RestartRules& rules, Nanos margin);

// The node was given it and has not said yet that it has it.
bool IsNotTakenUp(const MemberRecord& member);

// Since this wire protocol workers end ranks that the server cannot reach: a part that was given to
// an older one may run on for ever, and is waited for.
inline constexpr int kFencesSince = 2;

// The scheduler's view of a job. A model that is a path is no constraint: the node checks it.
sched::PendingJob ToPending(const JobRecord& job);
bool IsModelPath(const std::string& model);

}  // namespace sft::server
