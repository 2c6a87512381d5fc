#pragma once

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

// Inspection of a TLS server before any data is sent to it.

namespace sft::tls {

// The certificate chain that the server presents, its own first, unverified; for callers that know
// one by its fingerprint, and for messages. Bounded by a few seconds. UNAVAILABLE when nobody
// answers, FAILED_PRECONDITION when the peer does not speak TLS.
absl::StatusOr<std::vector<std::string>> FetchChain(const std::string& host, int port);

// The authority of the server: the last certificate it presents, if that is self-signed. With a
// fingerprint (hexadecimal, as Certificate's) only the one that has it: PERMISSION_DENIED
// otherwise.
absl::StatusOr<std::string> FetchAuthority(const std::string& host, int port,
                                           const std::string& fingerprint);

// Why a TLS connection to the server fails, as far as certificates and clocks are the reason; OK if
// they are in order.
absl::Status Explain(const std::string& host, int port, const std::string& authority_pem,
                     WallTime now);

}  // namespace sft::tls
