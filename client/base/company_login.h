#pragma once

#include <string>

#include "client/base/connection.h"

namespace sft::client {

// Ways to a token of a server that has a company login. `server` is a connection without a token.

// A browser of this machine logs in, and brings a code back to a port of it.
absl::StatusOr<std::string> TokenByBrowser(Connection& server);
// A browser of whichever machine logs in, where the person types a code.
absl::StatusOr<std::string> TokenByDevice(Connection& server);
// For the ID token of a CI job, in a file; "-": standard input.
absl::StatusOr<std::string> TokenByExchange(Connection& server, const std::string& file);

}  // namespace sft::client
