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
#include "server/store/budgets.h"

namespace sft::server {

// The scheduler's input, read at one moment. Reading changes nothing, so others go on storing
// meanwhile; where that matters it is checked again (Reconciler::StillStands).
struct SchedulerInput {
  // Pending jobs per slot type and project that are considered, the first in their queue: a later
  // one could start only past all of these.
  static constexpr int kMaxPending = 1000;

  std::vector<NodeRecord> nodes;
  std::vector<JobRecord> pending;  // with their schedules, without the large texts
  std::vector<LiveJob> live;
  // Built from these: the nodes as they may be used, and the pending jobs that may be placed now.
  sched::Snapshot snapshot;
  std::map<std::string, Reservation> promises;  // by job
  // Checkpoints of those that do not begin at step 0.
  std::map<std::string, sched::ResumeChoice> choices;
  // Pending jobs whose dependencies have ended since, and those that have no checkpoint left to
  // continue from.
  std::vector<JobRecord> released, stranded;
  std::vector<Explanation> explanations;
  std::vector<store::SpentBudget> budgets;
  // Time alone will change something.
  bool waits_for_time = false;
  // Changes of nodes must be stored before anything else: UpdateNodes.
  bool nodes_changed = false;
};

// `margin`: Reconciler::Options::unreachable_margin.
absl::StatusOr<SchedulerInput> ReadSchedulerInput(Database& db, const WorkerRegistry& registry,
                                                  int64_t now_us, Nanos margin);

// The checkpoint that a pending job continues from, among those that can be reached.
absl::StatusOr<sched::ResumeChoice> ChooseFor(Database& db, const WorkerRegistry& registry,
                                              const JobRecord& job, Nanos margin);

}  // namespace sft::server
