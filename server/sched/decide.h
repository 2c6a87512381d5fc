#pragma once

#include <string>

#include "server/sched/snapshot.h"

// The scheduler: a pure function from a snapshot to actions. No clock, no store, the same answer
// for the same snapshot.

namespace sft::server::sched {

// Limits of one decision.
struct Rules {
  // Jobs of each type of slot that are promised a start: the first of the line. More make later
  // starts certain and leave less to fill in.
  int max_promised = 16;
  // Jobs of each type behind them that keep their place within one decision. Without those a
  // project of large gangs never gets its share beside one of small jobs: those fill every gap.
  int max_reserved = 256;
  // Jobs of the line whose start is foretold; of those behind them it is reckoned from the work
  // that stands before them.
  int max_foretold = 256;
  // Jobs for which it is looked whether others can make room.
  int max_preemptors = 16;
};

// 1. Jobs stand in a line (order.h). The first of them start where there is room, or are promised
//    the earliest start at which all that runs has ended by the upper bounds of its run times, on
//    named nodes. A promise stands: a later decision may better it, and nothing of the same or a
//    lower level can take it away. A job without a bound counts as running for ever before others.
// 2. The next of the line start where there is room, or keep the earliest start free for themselves
//    from those behind them, in this decision alone: the next one looks at a line made anew.
// 3. Any other job starts where it delays none of those: it ends before, or other slots are enough.
//    The shortest of the project that has had the least GPU time is looked at first.
// 4. A job that would wait for long although jobs of lower classes run stops some of those
//    (preempt.h).
// 5. A job over a limit of its project or sweep, or one that the nodes at hand could never hold,
//    keeps nobody waiting.
Decision Decide(const Snapshot& snapshot, const Rules& rules = Rules());

// What the snapshot can say about a job that is not submitted yet: "could start now on a", or the
// reason it would wait for, with its place and expected start.
struct Outlook {
  std::string text;
  int place = 0;
  int64_t start_us = 0, end_us = 0;  // 0: not known
};
Outlook Preview(const Snapshot& snapshot, const PendingJob& job);

}  // namespace sft::server::sched
