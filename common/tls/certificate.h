#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

// Certificates of a fleet: one authority of its own, the server's certificate, one for each node.
// Keys are EC P-256; all texts are PEM. Pure but for the random generator: who needs the time gives
// it. INVALID_ARGUMENT for text that is no certificate, key or request.

namespace sft::tls {

// A private key and its certificate.
struct Identity {
  std::string key_pem;
  std::string certificate_pem;
};

// When a certificate is good.
struct Validity {
  WallTime from, to;
};

// What a certificate says.
struct Certificate {
  std::string common_name;
  std::vector<std::string> names;  // of hosts, and addresses
  std::string key_sha256;          // of the public key: the same after a renewal
  std::string fingerprint;         // SHA-256 of the whole, hexadecimal
  Validity validity;
};

absl::StatusOr<std::string> MakeKey();
// Signed by itself.
absl::StatusOr<Identity> MakeAuthority(std::string_view common_name, const Validity& validity);
// For a server that is reached under `names` (hosts or addresses).
absl::StatusOr<std::string> SignServer(const Identity& authority, std::string_view key_pem,
                                       const std::vector<std::string>& names,
                                       const Validity& validity);
// What a node sends to have its key certified (PKCS #10).
absl::StatusOr<std::string> MakeRequest(std::string_view key_pem, std::string_view common_name);
// Of the key in a request, if the request is signed by it; the name is given, not the request's.
absl::StatusOr<std::string> SignNode(const Identity& authority, std::string_view request_pem,
                                     std::string_view node, const Validity& validity);

// The first certificate of the text.
absl::StatusOr<Certificate> ReadCertificate(std::string_view pem);
// Certificate::key_sha256 of a request's and a private key.
absl::StatusOr<std::string> KeyOfRequest(std::string_view request_pem);
absl::StatusOr<std::string> KeyOfPrivate(std::string_view key_pem);

// Whether a server's certificate is for this host's name or address.
bool IsForHost(std::string_view pem, const std::string& host);

enum class Purpose { kServer, kNode };
// Whether the authority signed it for the purpose and `now` is within its time. UNAUTHENTICATED
// otherwise; a certificate out of its time is told with that time and `now`.
absl::Status Verify(std::string_view pem, std::string_view authority_pem, Purpose purpose,
                    WallTime now);

}  // namespace sft::tls
