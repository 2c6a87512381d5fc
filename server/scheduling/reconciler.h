#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "server/core/ages.h"
#include "server/core/change_hub.h"
#include "server/core/outlooks.h"
#include "server/fleet/worker_registry.h"
#include "server/gangs/gang_life.h"
#include "server/resume/resume_policy.h"
#include "server/sched/decide.h"
#include "server/sched/wait_history.h"
#include "server/scheduling/scheduler_input.h"
#include "server/state/records.h"
#include "server/store/store.h"

namespace sft::server {

// The reconciler brings the actual state into line with the desired one: it marks silent nodes,
// places pending jobs, and sends every node its desired set. Each step is its own transaction and
// starts from the database, so that boot, restart and normal running are one path. Driven by one
// thread (app), or by a test that calls Tick by hand.
class Reconciler {
 public:
  struct Options {
    // Time beyond a job's unreachable_after until its node's part is given up: the node ends its
    // ranks by then, counted from the last message it had from this server, and ending takes the
    // grace period.
    Nanos unreachable_margin = std::chrono::seconds(60);
    // Time that a connected node may take to report an attempt it was given.
    Nanos take_up_limit = std::chrono::minutes(10);
  };

  // `outlooks`, if given, receives the expected times of jobs with each tick.
  Reconciler(Store& store, Clock& clock, WorkerRegistry& registry, ChangeHub& hub, Options options,
             Outlooks* outlooks = nullptr)
      : store_(store),
        clock_(clock),
        registry_(registry),
        hub_(hub),
        options_(options),
        outlooks_(outlooks) {}
  Reconciler(Store& store, Clock& clock, WorkerRegistry& registry, ChangeHub& hub)
      : Reconciler(store, clock, registry, hub, Options()) {}

  // Records that this process runs: WorkerRegistry::Beat.
  void Beat() { registry_.Beat(); }
  absl::Status Tick();
  // The two halves of a tick, between which others may store changes: Look reads the state; the
  // other decides from it, stores and announces.
  absl::StatusOr<SchedulerInput> Look(int64_t now_us);
  absl::Status Decide(const SchedulerInput& input, int64_t now_us, ChangedJobs& changed);
  // True when a tick now could change something: a row was stored since the last one, a node has
  // fallen silent or was heard again, or time alone may have changed something.
  bool HasWork() const;

 private:
  // Interval of ticks that nothing triggers, for values that decay (node scores).
  static constexpr std::chrono::seconds kIdlePeriod{15};

  // A change of one job, as part of a transaction.
  using Change = std::function<absl::Status(Database&)>;
  // Changes per transaction: others wait for it.
  static constexpr size_t kTogether = 16;

  // Handles silent nodes, what is given up with them, and drained ones.
  absl::Status UpdateNodes(int64_t now_us, ChangedJobs& changed);
  // `nodes`, and their rows in the database.
  absl::Status MarkSilentNodes(Database& db, std::vector<NodeRecord>& nodes);
  absl::Status GiveUpUnreachable(Database& db, int64_t now_us, ChangedJobs& changed);
  // Adds the changes that the input requires without a decision.
  void AddJobChanges(const SchedulerInput& input, int64_t now_us, ChangedJobs& changed,
                     std::vector<Change>& changes);
  using Estimates = std::map<std::string_view, const EstimateRecord*>;  // first estimates, by job
  void AddDecision(const SchedulerInput& input, const sched::Decision& decision,
                   const Estimates& estimates, int64_t now_us, ChangedJobs& changed,
                   std::vector<Change>& changes);
  // Adds the promises of the decision that differ from the stored ones.
  static void AddPromises(const SchedulerInput& input, const sched::Decision& decision,
                          std::vector<Change>& changes);
  // True when a placement may still be made, given what users, operators and workers stored since
  // the input was read. Its slots need no check: only this process takes any.
  absl::StatusOr<bool> StillStands(Database& db, const sched::Placement& placement,
                                   const sched::ResumeChoice& choice);
  absl::Status Commit(const std::vector<Change>& changes);
  // Ends a job that has no checkpoint left to continue from.
  absl::Status EndStranded(Database& db, const std::string& job_id, int64_t now_us,
                           ChangedJobs& changed) const;
  absl::Status SendDesiredSets(int64_t now_us);

  Store& store_;
  Clock& clock_;
  WorkerRegistry& registry_;
  ChangeHub& hub_;
  const Options options_;
  Outlooks* const outlooks_;
  sched::WaitHistory waits_;
  // Jobs with a stored first estimate, and attempts with a stored estimate of their 50th step.
  std::set<std::string> noted_;
  // Ages of attempts and of drains that have a deadline.
  Ages ages_{clock_};
  // Commit count after the last tick; used by the ticking thread only.
  int64_t seen_commits_ = -1;
  uint64_t seen_silence_ = 0;
  bool waits_for_time_ = true;
  MonoTime ticked_{};
};

}  // namespace sft::server
