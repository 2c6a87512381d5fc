#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/tls/certificate.h"
#include "server/store/store.h"

namespace sft::server {

// Keys of a server that other machines can reach, in files of its data folder that only their owner
// may read:
//
//   <data dir>/tls/ca.key ca.crt          the fleet's authority
//   <data dir>/tls/server.key server.crt  the server's own, signed by the authority
struct Credentials {
  tls::Identity authority;
  tls::Identity server;  // the certificate is followed by the authority's
};

// Loads the credentials; nullopt when `sft-server init` was never run here. A server's certificate
// that expires soon is renewed. FAILED_PRECONDITION for keys that others may read, or an expired
// authority.
absl::StatusOr<std::optional<Credentials>> LoadCredentials(const std::string& data_dir,
                                                           Clock& clock);

// Until when its certificates are valid: "authority" and "server".
absl::StatusOr<std::map<std::string, WallTime>> ExpiryOf(const Credentials& credentials);

// Checks the keys that a server would start with and returns its certificate; nullopt when there
// are none. Changes nothing. Errors as LoadCredentials.
absl::StatusOr<std::optional<tls::Certificate>> CheckCredentials(const std::string& data_dir,
                                                                 Clock& clock);

// True when the database holds something that depends on an authority: users, tokens, nodes that
// have joined.
absl::StatusOr<bool> HasUsersOrNodes(Store& store);

// FAILED_PRECONDITION with advice, for a database that depends on an authority whose keys are gone.
absl::Status KeysMissing(const std::string& data_dir);

// Runs `sft-server init`: makes the authority, a certificate for this host and `names`, the user
// "admin" with a token, and a join token. Returns the text for the operator, which shows the
// secrets this once. ALREADY_EXISTS when it was run before. FAILED_PRECONDITION when the keys are
// gone and the database has users or nodes, unless a new authority is wanted, which locks them out.
absl::StatusOr<std::string> Initialise(const std::string& data_dir,
                                       const std::vector<std::string>& names, Clock& clock,
                                       bool new_authority = false);
// Runs `sft-server renew`: makes a new server certificate, for the names of the old one and
// `names`.
absl::StatusOr<std::string> RenewServer(const std::string& data_dir,
                                        const std::vector<std::string>& names, Clock& clock);
// Runs `sft-server token`: makes another token for the user "admin", for when all were lost. The
// server must be stopped.
absl::StatusOr<std::string> NewAdminToken(const std::string& data_dir, Clock& clock);

}  // namespace sft::server
