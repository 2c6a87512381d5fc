#pragma once

#include <set>
#include <string>

#include "server/database/sqlite.h"
#include "server/resume/resume_policy.h"
#include "server/sched/snapshot.h"
#include "server/state/records.h"

// The life of an attempt in the database: from a placement to the end of its job. Every function
// runs inside one transaction of the store.

namespace sft::server {

// Why an attempt is told to stop though nothing failed: codes of verdicts. With all but the last
// its job goes on later, at once or as soon as there is room, or money.
inline constexpr char kPreempted[] = "preempted", kMoved[] = "moved",
                      kBudgetReached[] = "budget_reached", kTimeLimit[] = "time_limit";
// How long its ranks may take for a checkpoint before they are ended all the same.
inline constexpr int kStopPatienceSeconds = 120;

// Jobs whose row changed, for ChangeHub after the commit.
using ChangedJobs = std::set<std::string>;

// Makes the next attempt of a job from a placement: its row with the checkpoint it goes on from,
// its members, its allocations, the job's edge to PREPARING, the events.
absl::Status StartAttempt(Database& db, const sched::Placement& placement,
                          const sched::ResumeChoice& resume, int64_t now_us, ChangedJobs& changed);

// What the job file allows. Of a job whose settings cannot be read any more the defaults: it ends
// with its attempt.
absl::StatusOr<RestartRules> ReadRestartRules(Database& db, const JobRecord& job);

// Asks DecideGang until nothing is left to do, and applies each step to the attempt and its job: a
// failed attempt ends the job or brings it back to PENDING (DecideRestart). `ended_us` is when its
// processes ended, where somebody says so: an end is stored as of then, not as of when it was
// heard.
absl::Status AdvanceGang(Database& db, const std::string& attempt_uid, const RestartPace& pace,
                         int64_t now_us, ChangedJobs& changed, int64_t ended_us = 0);

// Gives up a node for an attempt: its part counts as gone, and its slots stay held until the node
// says what became of it.
absl::Status GiveUpNode(Database& db, const std::string& attempt_uid, const std::string& node,
                        const RestartPace& pace, int64_t now_us, ChangedJobs& changed);

// Tells an attempt to write a checkpoint and end, for a verdict's code and a reason: with
// kTimeLimit its job ends; with the others it goes back to its place in the line, which uses up no
// restart. One that is stopping already is left as it is. Where a node shall not be used
// again, something else has to say so.
absl::Status StopAttempt(Database& db, const std::string& attempt_uid, const std::string& code,
                         const std::string& reason, int64_t now_us, ChangedJobs& changed);

// Marks the cancel of a job as asked for and takes the edge that follows from it: at once CANCELLED
// when it is pending, CANCELLING when it has an attempt. With `checkpoint` one is written first. An
// ended job, or one whose cancel was asked for before, is left as it is.
absl::Status CancelJob(Database& db, const std::string& job_id, const std::string& reason,
                       bool checkpoint, int64_t now_us, ChangedJobs& changed);

}  // namespace sft::server
