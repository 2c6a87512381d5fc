#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/tls/certificate.h"
#include "server/store/store.h"

namespace sft::server {

// The keys of a server that is reached from elsewhere, in files of its data folder that only their
// owner may read:
//
//   <data dir>/tls/ca.key ca.crt          the fleet's authority
//   <data dir>/tls/server.key server.crt  the server's own, signed by it
struct Credentials {
  tls::Identity authority;
  tls::Identity server;  // its certificate is followed by the authority's
};

// Nothing when `sft-server init` was never run here. A server's certificate that ends soon is made
// anew. FAILED_PRECONDITION for keys that others may read, or an authority that has expired.
absl::StatusOr<std::optional<Credentials>> LoadCredentials(const std::string& data_dir,
                                                           Clock& clock);

// The server's certificate, of keys that a server could start with; nothing when there are none.
// Changes nothing. Errors as of LoadCredentials.
absl::StatusOr<std::optional<tls::Certificate>> CheckCredentials(const std::string& data_dir,
                                                                 Clock& clock);

// Whether the database has what depends on an authority: users, tokens, nodes that have joined.
absl::StatusOr<bool> HasUsersOrNodes(Store& store);

// What to do where it has such, and the keys are gone: FAILED_PRECONDITION.
absl::Status KeysMissing(const std::string& data_dir);

// sft-server init: makes the authority, a certificate for this host and `names`, the user "admin"
// with a token, and a join token. Gives what to tell the operator, secrets included, once.
// ALREADY_EXISTS when it was run before. FAILED_PRECONDITION when the keys are gone and the
// database has users or nodes, unless a new authority is wanted, which locks them out.
absl::StatusOr<std::string> Initialise(const std::string& data_dir,
                                       const std::vector<std::string>& names, Clock& clock,
                                       bool new_authority = false);
// sft-server renew: a new server certificate, for the names of the old one and these.
absl::StatusOr<std::string> RenewServer(const std::string& data_dir,
                                        const std::vector<std::string>& names, Clock& clock);
// sft-server token: another token for the user "admin", where all were lost. The server is stopped.
absl::StatusOr<std::string> NewAdminToken(const std::string& data_dir, Clock& clock);

}  // namespace sft::server
