#pragma once

#include <string>
#include <vector>

#include "server/sched/fleet.h"
#include "server/sched/snapshot.h"

// Explains to a person why a job waits. The texts hold nothing that changes by itself, because each
// change is stored and shown.

namespace sft::server::sched {

// What the nodes lack for the job, for one that could never be placed and for the first in the
// queue.
std::string WhyNoRoom(const Snapshot& snapshot, const PendingJob& job, const Fleet& fleet,
                      const Shape& shape);

// The reason of a job that waits behind others.
std::string InLine(const PendingJob& job);

// "a, b, c and 4 more"
std::string Some(const std::vector<std::string>& names);

}  // namespace sft::server::sched
