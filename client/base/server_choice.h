#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/channel.h"

namespace sft::client {

// A server that may be the fleet's, and how it is called.
struct ServerCandidate {
  std::string address;  // "host:port"
  absl::StatusOr<rpc::Security> security;
};

// The candidates of an address with commas, with what is known of each: one without a login is
// called with that of another, as they are of one fleet.
std::vector<ServerCandidate> CandidatesOf(const std::string& servers);

// Which of them serves the fleet: of those that answer, the one of the highest generation
// (ServerInfo), for an old one may have come back. Waits some seconds at most, and only shortly for
// others once one has answered. The first when none answers.
size_t ChooseServer(const std::vector<ServerCandidate>& candidates);

}  // namespace sft::client
