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
#include "server/scheduling/scheduler_input.h"
#include "server/state/records.h"
#include "server/store/store.h"

namespace sft::server {

// Brings what is into line with what shall be: marks silent nodes, places pending jobs, and tells
// every node its desired set. Each step is a transaction of its own, and each starts from the
// database, so that boot, restart and normal running are one path. Driven by one thread (app), or
// by a test, which calls Tick by hand.
class Reconciler {
 public:
  struct Options {
    // Beyond a job's unreachable_after, until its node's part is given up: the node ends its ranks
    // by then, counted from the last word it had of this server, and their end takes the grace.
    Nanos unreachable_margin = std::chrono::seconds(60);
    // So long a node that is heard may take to say that it has an attempt.
    Nanos take_up_limit = std::chrono::minutes(10);
  };

  // `outlooks`, where it is given, gets what is expected of jobs with each tick.
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

  // Says that this process runs: WorkerRegistry::Beat.
  void Beat() { registry_.Beat(); }
  absl::Status Tick();
  // The two halves of a tick, between which others may store things: what is, then what follows
  // from it, stored and made known.
  absl::StatusOr<SchedulerInput> Look(int64_t now_us);
  absl::Status Decide(const SchedulerInput& input, int64_t now_us, ChangedJobs& changed);
  // Whether a tick now could do anything: something was stored since the last one, a node has
  // fallen silent or was heard of again, or time alone may have changed something.
  bool HasWork() const;

 private:
  // Ticks that nothing asks for: what fades with time, as the scores of nodes do.
  static constexpr std::chrono::seconds kIdlePeriod{15};

  // What becomes of one job: a part of a transaction.
  using Change = std::function<absl::Status(Database&)>;
  // Changes in one transaction: others wait for it.
  static constexpr size_t kTogether = 16;

  // Silent nodes, what is given up with them, and drained ones.
  absl::Status MindNodes(int64_t now_us, ChangedJobs& changed);
  // `nodes` and what is stored of them.
  absl::Status MarkSilentNodes(Database& db, std::vector<NodeRecord>& nodes);
  absl::Status GiveUpUnreachable(Database& db, int64_t now_us, ChangedJobs& changed);
  // What the input says without a decision.
  void AddJobChanges(const SchedulerInput& input, int64_t now_us, ChangedJobs& changed,
                     std::vector<Change>& changes);
  using Estimates = std::map<std::string_view, const EstimateRecord*>;  // first ones, by job
  void AddDecision(const SchedulerInput& input, const sched::Decision& decision,
                   const Estimates& estimates, int64_t now_us, ChangedJobs& changed,
                   std::vector<Change>& changes);
  // What the decision promises otherwise than was promised before.
  static void AddPromises(const SchedulerInput& input, const sched::Decision& decision,
                          std::vector<Change>& changes);
  // Whether a placement may still be made, by what users, operators and workers stored since the
  // input was read. That its slots are free needs no look: only this process takes any.
  absl::StatusOr<bool> StillStands(Database& db, const sched::Placement& placement,
                                   const sched::ResumeChoice& choice);
  absl::Status Commit(const std::vector<Change>& changes);
  // Ends a job that has no checkpoint left to go on from.
  absl::Status EndStranded(Database& db, const std::string& job_id, int64_t now_us,
                           ChangedJobs& changed) const;
  absl::Status SendDesiredSets(int64_t now_us);

  Store& store_;
  Clock& clock_;
  WorkerRegistry& registry_;
  ChangeHub& hub_;
  const Options options_;
  Outlooks* const outlooks_;
  // Jobs with a first estimate, and attempts with one of their 50th step, that are stored.
  std::set<std::string> noted_;
  // Of attempts and of drains that have a deadline.
  Ages ages_{clock_};
  // After the last tick; of the thread that ticks.
  int64_t seen_commits_ = -1;
  uint64_t seen_silence_ = 0;
  bool waits_for_time_ = true;
  MonoTime ticked_{};
};

}  // namespace sft::server
