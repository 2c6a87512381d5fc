#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::rpc {

// The host and port that a server listens on.
struct Endpoint {
  std::string host;
  int port = 0;

  // "host:port", an IPv6 host in brackets.
  std::string ToString() const;
};

// Parses "host:port" or "[::1]:7070"; port 0 (any free one) only with `allow_port_zero`.
absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text, bool allow_port_zero = false);

// Parses "host:port,host:port": a server and those that may take its place. One at least.
absl::StatusOr<std::vector<Endpoint>> ParseEndpoints(std::string_view text);

// True for 127.0.0.0/8, ::1 and "localhost". Names are not looked up.
bool IsLoopback(const std::string& host);

}  // namespace sft::rpc
