#pragma once

#include <string>

#include "common/base/clock.h"
#include "worker/rank/memory_limit.h"

namespace sft::rank {

// Context of the report that this process makes when a chat template, tokenizer or row takes too
// much of the machine (worker/engine/data/runaway.h).
struct RunawayScene {
  std::string event_file;  // gets a `fatal` event; empty: standard error alone
  std::string data_name;   // what the line in work is of
  MemoryLimit limit;       // under which the process runs
};

// Makes a runaway report itself in `scene` and end the process, from now on. Call while no other
// thread works; the last call counts. Throws InfrastructureError.
void ReportRunaways(RunawayScene scene, const Clock& clock);

}  // namespace sft::rank
