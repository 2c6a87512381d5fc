#pragma once

#include <netdb.h>

#include <chrono>
#include <string>

#include "common/base/clock.h"
#include "worker/channel/launch.h"

namespace sft::rank {

// What a machine answered who was asked for a connection.
struct Answered {
  bool listens = false;  // something took the connection
  bool reached = false;  // the machine is there, whether something listens or not
  std::string error;     // empty where something listens
};

// Asks once, for at most `patience`.
Answered Dial(const addrinfo& address, std::chrono::milliseconds patience);

// Whether this node reaches the machine on which rank 0 will listen, before anything is loaded; of
// rank 0's own node nothing is asked. Throws InfrastructureError "rendezvous_unreachable", naming
// the node, after `patience`.
void ReachRankZero(const channel::RankLaunch& launch, Clock& clock,
                   std::chrono::milliseconds patience);

}  // namespace sft::rank
