#pragma once

#include "common/base/clock.h"
#include "worker/engine/dist/communicator.h"
#include "worker/rank/device.h"
#include "worker/rank/event_log.h"
#include "worker/rank/launch_file.h"

namespace sft::rank {

// Before the model is loaded, in less than 2 s where all is well: large products on each GPU,
// gathers between the GPUs of each node, messages and gathers between pairs of nodes (all ranks of
// both at once), clocks and versions. CPUs measure the network between nodes alone. What is slow
// (preflight_judge.h) goes to the job's history as an event "preflight" of rank 0; figures go to
// the log. The first rank of each node keeps the node's figures in the cache folder, for later
// preflights to compare with.
//
// Called by all ranks of a world of several. Throws InfrastructureError where training must not
// start: "preflight_failed" on the ranks of the node that is blamed, "collective_failed" on others.
void RunPreflight(const Launch& launch, int rank, const Device& device, engine::Communicator& comm,
                  EventLog& events, Clock& clock);

}  // namespace sft::rank
