#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/state/records.h"

// Which checkpoint a job goes on from. Pure.

namespace sft::server::sched {

// A node as far as its checkpoints can be reached.
struct Holder {
  // Silent for longer than the job waits for a node: what lies on it alone is lost to the job.
  bool given_up = false;
};

// Where the next attempt begins, and where it may be placed for it.
struct ResumeChoice {
  // Nothing: from step 0.
  std::optional<CheckpointRecord> checkpoint;
  // The nodes that alone have it, by node rank; empty: any.
  std::vector<std::string> only_nodes;
  bool needs_shared = false;
  // What was passed over and why, a sentence each: the job's history shows it.
  std::vector<std::string> notes;
};

// The newest of `checkpoints` (committed, newest first) that can be reached. One on nodes that are
// silent but not given up is waited for. `nodes`: those of their parts; one that it lacks is gone.
ResumeChoice ChooseResume(const std::vector<CheckpointRecord>& checkpoints,
                          const std::map<std::string, Holder>& nodes);

// "step 40 of attempt 2"
std::string Describe(const CheckpointRecord& checkpoint);

}  // namespace sft::server::sched
