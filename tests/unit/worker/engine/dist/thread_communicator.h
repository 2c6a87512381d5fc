#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "worker/engine/dist/communicator.h"

// Collectives between ranks that are threads of one process: whoever comes last does the work in
// memory. Tests of what is built on collectives take a third of the time that they take over Gloo,
// whose threads wake each other for every message. Sums are added in rank order.
//
// Stricter than Gloo: ranks that call different collectives, or sizes that do not fit, are told so
// by InternalError instead of waiting. A rank whose communicator is destroyed while others wait for
// it, and one that does not come within the time-out, are InfrastructureErrors of the others.

namespace sft::engine {

// One for each of `world` ranks, in their order; each is used by one thread.
std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(
    int world, std::chrono::milliseconds timeout);

}  // namespace sft::engine
