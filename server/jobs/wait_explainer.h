#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/fleet/worker_registry.h"
#include "server/jobs/job_intake.h"
#include "server/sched/what_if.h"
#include "server/store/store.h"
#include "sft/v1/job.pb.h"

namespace sft::server {

// Says why a job waits and what would start it sooner: decides again with one change to the job at
// a time, on a snapshot of its own, so that the reconciler waits for nothing. One explanation is
// made at a time, in its caller's thread. Thread-safe.
class WaitExplainer {
 public:
  // All borrowed.
  WaitExplainer(Store& store, const WorkerRegistry& registry, JobIntake& intake, Clock& clock)
      : store_(store), registry_(registry), intake_(intake), clock_(clock) {}

  // Answers are given again for as long.
  static constexpr std::chrono::seconds kKept{10};
  // Callers that wait for the one that is answered; more are refused with RESOURCE_EXHAUSTED.
  static constexpr int kMaxWaiting = 8;

  // Of a stored job, by its name or id. NOT_FOUND; FAILED_PRECONDITION for one that does not wait.
  absl::StatusOr<v1::WaitExplanation> Explain(const std::string& name);
  // Of one that Prepare finds no problem with, if it were submitted now. Empty where it could
  // start.
  absl::StatusOr<v1::WaitExplanation> ExplainNew(const v1::SubmitJobRequest& request,
                                                 const std::string& principal);

 private:
  // What an explanation goes by, read at one moment.
  struct Known {
    JobRecord job;  // with its texts and schedule
    std::vector<JobFileRecord> files;
    bool stored = false;
    sched::Snapshot snapshot;
    ProjectLimits limits;
    std::vector<EstimateRecord> begun;
    std::vector<WaitChange> history;
  };
  // Waits for its turn, and ends it.
  class Turn;

  absl::Status ReadFleet(Database& db, Known& known) const;
  absl::StatusOr<v1::WaitExplanation> Answer(const Known& known);
  // The changes that are worth it, in words and as commands.
  void AddWhatIfs(const Known& known, const sched::Question& question,
                  v1::WaitExplanation& explanation) const;
  std::optional<sched::PendingJob> Reshape(const Known& known, const sched::Change& change) const;
  std::optional<v1::WaitExplanation> Kept(const std::string& key) SFT_EXCLUDES(mutex_);
  void Keep(const std::string& key, const v1::WaitExplanation& explanation) SFT_EXCLUDES(mutex_);

  Store& store_;
  const WorkerRegistry& registry_;
  JobIntake& intake_;
  Clock& clock_;
  Mutex mutex_;
  CondVar free_;
  bool busy_ SFT_GUARDED_BY(mutex_) = false;
  int waiting_ SFT_GUARDED_BY(mutex_) = 0;
  struct Answered {
    MonoTime at{};
    v1::WaitExplanation explanation;
  };
  std::map<std::string, Answered> answered_ SFT_GUARDED_BY(mutex_);
};

// The change as a person says it: "with 2 GPUs in place of 4".
std::string ChangeText(const sched::PendingJob& job, const sched::Change& change);
// The keys of the job file that make it; none for a release.
google::protobuf::RepeatedPtrField<v1::Override> OverridesOf(const sched::PendingJob& job,
                                                             const sched::Change& change);
// "sftctl submit job.toml --set compute.gpu_count=2", with words quoted for a shell.
std::string SubmitCommand(const v1::SubmitJobRequest& request);

}  // namespace sft::server
