#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/fleet/worker_registry.h"
#include "server/resume/resume_policy.h"
#include "server/sched/decide.h"
#include "server/scheduling/stuck_jobs.h"
#include "server/state/records.h"

namespace sft::server {

// What the scheduler decides by, read at one moment. Reading it changes nothing, so that others go
// on storing meanwhile; what is stored by then is checked again where it matters
// (Reconciler::StillStands).
struct SchedulerInput {
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
absl::StatusOr<SchedulerInput> ReadSchedulerInput(Database& db, const WorkerRegistry& registry,
                                                  int64_t now_us, Nanos margin);

// What a pending job goes on from, of what can be reached.
absl::StatusOr<sched::ResumeChoice> ChooseFor(Database& db, const WorkerRegistry& registry,
                                              const JobRecord& job, Nanos margin);

}  // namespace sft::server
