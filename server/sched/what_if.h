#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/sched/decide.h"

// What would start a waiting job sooner: the same snapshot decided again with one change to the
// job. Pure, and as slow as some twenty decisions at most: ask outside of any lock and transaction.

namespace sft::server::sched {

// What waits before a job in the line for its type of slots.
struct Ahead {
  int line = 0;             // jobs in that line, itself included; 0: it is in none
  int own = 0, others = 0;  // jobs before it: of its project, and of others
  double gpu_us = 0;        // GPU time that those are expected to take
  int unknown = 0;          // of them, those whose run time is not known: they count with an hour
};
Ahead AheadOf(const Snapshot& snapshot, const Decision& decision, const PendingJob& job);

// One change to a job. But for a release it means a new job in place of the waiting one, at the end
// of its project's line.
struct Change {
  enum class Kind { kRelease, kShape, kTimeLimit, kPriority };
  Kind kind = Kind::kRelease;
  // kShape: the slots that it then takes.
  std::string gpu_type;
  int nodes = 0, gpus_per_node = 0;
  int64_t limit_us = 0;  // kTimeLimit
  int priority = 0;      // kPriority
};
// What a change would do.
struct WhatIf {
  Change change;
  Outlook outlook;
};

// What is asked about, and what only others know.
struct Question {
  PendingJob job;
  Outlook expected;  // as things are
  // The job once its hold is released; absent: it is not held.
  std::optional<PendingJob> released;
  // Whether a new job may take its place; it may not where work would be lost.
  bool replaceable = true;
  // The highest class that its project may use.
  int max_priority = kNormal;
  // The job on other slots, with its expected run time there; nullopt where it cannot be.
  std::function<std::optional<PendingJob>(const Change&)> reshape;
  // What a limit adds to the upper bound of a run.
  int64_t ending_us = 0;
};

inline constexpr size_t kMaxWhatIfs = 5;

// Changes with which it starts sooner, by at least a minute; the earliest start first. A job that
// starts now needs none.
std::vector<WhatIf> FindWhatIfs(const Snapshot& snapshot, const Question& question);

}  // namespace sft::server::sched
