#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/rpc/channel.h"

namespace sft::client {

// A login, stored by `sftctl login` in ~/.config/sft/credentials.json, which only its owner may
// read: the certificate of the server's authority and the token.
struct Login {
  std::string server;  // "host:port"
  rpc::Security security;
};

// The server of the last login; empty: none.
absl::StatusOr<std::string> LastServer();
// Credentials for a server: the stored login, with SFT_CA (a file) and SFT_TOKEN taking precedence.
// FAILED_PRECONDITION for a remote server without a login.
absl::StatusOr<rpc::Security> SecurityOf(const std::string& server);
// Stores it, replacing an earlier one of the same server.
absl::Status KeepLogin(const Login& login);
// Path of the file; for messages.
absl::StatusOr<std::string> LoginPath();

}  // namespace sft::client
