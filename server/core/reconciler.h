#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "server/core/change_hub.h"
#include "server/core/gang_life.h"
#include "server/core/outlooks.h"
#include "server/core/worker_registry.h"
#include "server/sched/decide.h"
#include "server/sched/resume_policy.h"
#include "server/state/records.h"
#include "server/store/store.h"

namespace sft::server {

// Brings what is into line with what shall be: marks silent nodes, places pending jobs, and tells
// every node its desired set. Each step is a transaction of its own, and each starts from the
// database, so that boot, restart and normal running are one path. Driven by one thread (app), or
// by a test, which calls Tick by hand.
class Reconciler {
 public:
  // Pending jobs of each slot type and project that are looked at in a tick, the first of their
  // line: a later one could start only past all of these.
  static constexpr int kMaxPending = 1000;

  struct Options {
    // Beyond a job's unreachable_after, until its node's part is given up: the node ends its ranks
    // by then, counted from the last word it had of this server, and their end takes the grace.
    Nanos unreachable_margin = std::chrono::seconds(60);
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
  // Whether a tick now could do anything: something was stored since the last one, a node has
  // fallen silent or was heard of again, or time alone may have changed something.
  bool HasWork() const;

 private:
  // Ticks that nothing asks for: what fades with time, as the scores of nodes do.
  static constexpr std::chrono::seconds kIdlePeriod{15};

  // `nodes` and what is stored of them.
  absl::Status MarkSilentNodes(Database& db, std::vector<NodeRecord>& nodes);
  absl::Status GiveUpUnreachable(Database& db, int64_t now_us, ChangedJobs& changed);
  // What a tick makes known once it is stored.
  struct News {
    std::map<std::string, sched::Reservation> promised;
    Outlooks::Map outlooks;
  };
  // The pending jobs that may be placed now, with what each goes on from.
  absl::Status AddPending(Database& db, const std::vector<JobRecord>& pending,
                          std::map<std::string, ScheduleRecord>& schedules, int64_t now_us,
                          sched::Snapshot& snapshot,
                          std::map<std::string, sched::ResumeChoice>& choices,
                          ChangedJobs& changed);
  absl::StatusOr<sched::ResumeChoice> ChooseFor(Database& db, const JobRecord& job);
  // Silent for longer than the job allows.
  bool IsGivenUp(const WorkerRegistry::Live& live, const RestartRules& rules) const;
  absl::Status Place(Database& db, int64_t now_us, ChangedJobs& changed, News& news);
  absl::Status ExplainLive(Database& db, const std::vector<NodeRecord>& list, int64_t now_us,
                           ChangedJobs& changed);
  absl::Status SendDesiredSets(int64_t now_us);

  Store& store_;
  Clock& clock_;
  WorkerRegistry& registry_;
  ChangeHub& hub_;
  const Options options_;
  Outlooks* const outlooks_;
  // What waiting jobs were promised. Made anew after a restart.
  std::map<std::string, sched::Reservation> promised_;
  // After the last tick; of the thread that ticks.
  int64_t seen_commits_ = -1;
  uint64_t seen_silence_ = 0;
  bool waits_for_time_ = true;
  MonoTime ticked_{};
};

// What the scheduler sees: the nodes of the database, usable where their stream lives.
absl::StatusOr<sched::Snapshot> MakeSnapshot(Database& db, const WorkerRegistry& registry);

// The scheduler's view of a job. A model that is a path is no constraint: the node checks it.
sched::PendingJob ToPending(const JobRecord& job);
bool IsModelPath(const std::string& model);

}  // namespace sft::server
