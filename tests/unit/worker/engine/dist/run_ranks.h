#pragma once

#include <functional>

#include "worker/engine/dist/communicator.h"
#include "worker/engine/dist/rendezvous.h"

// Ranks as threads of the test.

namespace sft::engine {

// Runs `body` on `world` threads with a communicator each (thread_communicator.h) and joins them.
// Throws what the lowest failing rank threw.
void RunRanks(int world, const std::function<void(Communicator&)>& body);

// The same over Gloo on the loopback.
void RunRanksOverGloo(int world, const std::function<void(Communicator&)>& body,
                      std::chrono::milliseconds timeout = std::chrono::minutes(10));

}  // namespace sft::engine
