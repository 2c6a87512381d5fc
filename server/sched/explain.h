#pragma once

#include <string>
#include <vector>

#include "server/sched/fleet.h"
#include "server/sched/snapshot.h"

// Why a job waits, for a person. The texts hold nothing that changes by itself, as each change is
// stored and shown.

namespace sft::server::sched {

// What the nodes lack for the job: said of one that could never be placed, and of the first in
// line.
std::string WhyNoRoom(const Snapshot& snapshot, const PendingJob& job, const Fleet& fleet,
                      const Shape& shape);

// Of a job behind others.
std::string InLine(const PendingJob& job);

// "a, b, c and 4 more"
std::string Some(const std::vector<std::string>& names);

}  // namespace sft::server::sched
