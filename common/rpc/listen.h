#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/io/file.h"
#include "common/rpc/endpoint.h"

namespace sft::rpc {

// Opens non-blocking listening sockets on all addresses of an endpoint's host, at one port; port 0
// takes any free one. "0.0.0.0" means both families where the machine has them. UNAVAILABLE with
// the reason when the port is in use or not permitted; INVALID_ARGUMENT for a host without an
// address.
absl::StatusOr<std::vector<io::UniqueFd>> Listen(const Endpoint& endpoint);
// The port that a listening socket is bound to; 0 if it is not such a socket.
int PortOf(int socket);

}  // namespace sft::rpc
