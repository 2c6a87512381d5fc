#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace sft::rpc {

// The oldest protocol that a server of this build serves: the one before its own.
int MinProtocol();

// OK when a server of this build serves a peer that speaks `protocol`; otherwise
// FAILED_PRECONDITION that names both versions and says which side to upgrade. `peer` is, for
// example, "worker node-a" or "sftctl".
absl::Status CheckPeerProtocol(std::string_view peer, int protocol, std::string_view version);

// The reverse check, in a client or worker: whether the server it met serves this build.
absl::Status CheckServerProtocol(int server_protocol, int server_min_protocol,
                                 std::string_view server_version);

}  // namespace sft::rpc
