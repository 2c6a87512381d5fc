#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/rpc/channel.h"

namespace sft::client {

// What `sftctl login` keeps of servers, in ~/.config/sft/credentials.json, which only its owner may
// read: the certificate of each server's authority and the token.
struct Login {
  std::string server;  // "host:port"
  rpc::Security security;
};

// The server that was logged in to last; empty: none.
absl::StatusOr<std::string> LastServer();
// How to reach the server: what is kept of it, with SFT_CA (a file) and SFT_TOKEN in its place
// where they are set. FAILED_PRECONDITION for one that is not on this machine and was never logged
// in to.
absl::StatusOr<rpc::Security> SecurityOf(const std::string& server);
// Keeps it, in the place of an earlier one of the same server.
absl::Status KeepLogin(const Login& login);
// Where; for messages.
absl::StatusOr<std::string> LoginPath();

}  // namespace sft::client
