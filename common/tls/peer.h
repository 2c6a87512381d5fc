#pragma once

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

// A look at a TLS server before anything is said to it.

namespace sft::tls {

// The certificates that the server shows, its own first, none of them checked; for who knows one by
// its fingerprint, and for messages. Bounded by a few seconds. UNAVAILABLE when nobody answers,
// FAILED_PRECONDITION when who answers does not speak TLS.
absl::StatusOr<std::vector<std::string>> FetchChain(const std::string& host, int port);

// The authority of the server: the last certificate it shows, if that signed itself. With a
// fingerprint (hexadecimal, as Certificate's) only the one that has it: PERMISSION_DENIED
// otherwise.
absl::StatusOr<std::string> FetchAuthority(const std::string& host, int port,
                                           const std::string& fingerprint);

// Why a TLS connection to the server fails, as far as certificates and clocks are the reason; OK
// when they are in order.
absl::Status Explain(const std::string& host, int port, const std::string& authority_pem,
                     WallTime now);

}  // namespace sft::tls
