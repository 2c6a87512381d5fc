#include "common/rpc/version.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/version.h"

namespace sft::rpc {

int MinProtocol() { return std::max(1, kProtocol - 1); }

absl::Status CheckPeerProtocol(std::string_view peer, int protocol, std::string_view version) {
  if (protocol >= MinProtocol() && protocol <= kProtocol) return absl::OkStatus();
  return FailedPrecondition(
      fmt::format("{} {} speaks protocol {}, this server {} serves {} to {}: upgrade {}", peer,
                  version, protocol, kVersion, MinProtocol(), kProtocol,
                  protocol > kProtocol ? "the server first" : peer));
}

absl::Status CheckServerProtocol(int server_protocol, int server_min_protocol,
                                 std::string_view server_version) {
  if (kProtocol >= server_min_protocol && kProtocol <= server_protocol) return absl::OkStatus();
  return FailedPrecondition(fmt::format(
      "the server ({}) serves protocols {} to {}, this program ({}) speaks {}: upgrade {}",
      server_version, server_min_protocol, server_protocol, kVersion, kProtocol,
      kProtocol > server_protocol ? "the server" : "this program"));
}

}  // namespace sft::rpc
