#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace sft::rpc {

// The oldest protocol a server of this build serves: its own and the one before it.
int MinProtocol();

// OK when a server of this build serves a peer that speaks `protocol`; else FAILED_PRECONDITION
// that names both versions and says which side to upgrade. `peer` is "worker node-a", "sftctl".
absl::Status CheckPeerProtocol(std::string_view peer, int protocol, std::string_view version);

// The other direction: a client or worker asks whether the server it met serves it.
absl::Status CheckServerProtocol(int server_protocol, int server_min_protocol,
                                 std::string_view server_version);

}  // namespace sft::rpc
