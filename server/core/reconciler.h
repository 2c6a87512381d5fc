#pragma once

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "server/core/change_hub.h"
#include "server/core/gang_life.h"
#include "server/core/worker_registry.h"
#include "server/sched/gang_policy.h"
#include "server/state/records.h"
#include "server/store/store.h"

namespace sft::server {

// Brings what is into line with what shall be: marks silent nodes, places pending jobs, and tells
// every node its desired set. Each step is a transaction of its own, and each starts from the
// database, so that boot, restart and normal running are one path. Driven by one thread (app), or
// by a test, which calls Tick by hand.
class Reconciler {
 public:
  // Pending jobs looked at in a tick, oldest first.
  static constexpr int kMaxPending = 1000;

  Reconciler(Store& store, Clock& clock, WorkerRegistry& registry, ChangeHub& hub)
      : store_(store), clock_(clock), registry_(registry), hub_(hub) {}

  absl::Status Tick();

 private:
  absl::Status MarkSilentNodes(Database& db);
  absl::Status Place(Database& db, int64_t now_us, ChangedJobs& changed);
  absl::Status ExplainLive(Database& db, int64_t now_us, ChangedJobs& changed);
  absl::Status SendDesiredSets();

  Store& store_;
  Clock& clock_;
  WorkerRegistry& registry_;
  ChangeHub& hub_;
};

// What the scheduler sees: the nodes of the database, usable where their stream lives.
absl::StatusOr<sched::Snapshot> MakeSnapshot(Database& db, const WorkerRegistry& registry);

// The scheduler's view of a job. A model that is a path is no constraint: the node checks it.
sched::PendingJob ToPending(const JobRecord& job);
bool IsModelPath(const std::string& model);

}  // namespace sft::server
