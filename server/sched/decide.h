#pragma once

#include <string>

#include "server/sched/snapshot.h"

// The scheduler: a pure function from a snapshot to actions. It uses no clock and no store: the
// same snapshot gives the same decision.

namespace sft::server::sched {

// Limits on the work of one decision.
struct Rules {
  // Jobs per slot type, from the front of the queue, that are promised a start. More of them make
  // later starts certain and leave fewer gaps to backfill.
  int max_promised = 16;
  // Further jobs per slot type that keep their place within one decision. Without those a project
  // of large gangs never gets its share beside one of small jobs, which fill every gap.
  int max_reserved = 256;
  // Queued jobs whose start is simulated; for those behind them it is estimated from the work ahead
  // of them.
  int max_foretold = 256;
  // Jobs for which preemption is considered.
  int max_preemptors = 16;
};

// 1. Jobs are queued (order.h). The first of them start where there is room, or are promised
//    the earliest start at which everything running has ended by its upper bound, on named nodes.
//    A promise stands: a later decision may improve it, and no job of the same or a lower level
//    can take it away. A job without a bound counts as running for ever for others.
// 2. The next ones in the queue start where there is room, or reserve the earliest start against
//    those behind them, in this decision only: the next decision orders the queue anew.
// 3. Any other job starts where it delays none of those (backfill): it ends before, or other slots
//    are enough. The shortest job of the project with the least GPU time is tried first.
// 4. A job that would wait for long although jobs of lower classes run preempts some of those
//    (preempt.h).
// 5. A job over a limit of its project or sweep, or one that the present nodes could never hold,
//    delays nobody.
Decision Decide(const Snapshot& snapshot, const Rules& rules = Rules());

// What a decision means for one job: "could start now on a", or the reason it waits for, with its
// place and expected start.
struct Outlook {
  std::string text;
  bool now = false;  // it is placed
  int place = 0;
  int64_t start_us = 0, end_us = 0;  // 0: not known
  int64_t promised_us = 0;           // 0: no promise
};
// `job` is one of the snapshot that was decided.
Outlook OutlookOf(const Snapshot& snapshot, const Decision& decision, const PendingJob& job);
// A forecast for a job that is not submitted yet.
Outlook Preview(const Snapshot& snapshot, const PendingJob& job);

}  // namespace sft::server::sched
