#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

// Certificates of a fleet: its own authority, the server's certificate and one for each node. Keys
// are EC P-256; all texts are PEM. Pure but for the random generator: the caller passes the time.
// INVALID_ARGUMENT for text that is not a certificate, key or request.

namespace sft::tls {

// A private key and its certificate.
struct Identity {
  std::string key_pem;
  std::string certificate_pem;
};

// The period in which a certificate is valid.
struct Validity {
  WallTime from, to;
};

// The fields of a certificate.
struct Certificate {
  std::string common_name;
  std::vector<std::string> names;  // hosts and addresses
  std::string key_sha256;          // SHA-256 of the public key: unchanged by a renewal
  std::string fingerprint;         // SHA-256 of the whole certificate, hexadecimal
  Validity validity;
};

absl::StatusOr<std::string> MakeKey();
// Makes a self-signed authority.
absl::StatusOr<Identity> MakeAuthority(std::string_view common_name, const Validity& validity);
// Signs a certificate for a server that is reached under `names` (hosts or addresses).
absl::StatusOr<std::string> SignServer(const Identity& authority, std::string_view key_pem,
                                       const std::vector<std::string>& names,
                                       const Validity& validity);
// Makes the request by which a node has its key certified (PKCS #10).
absl::StatusOr<std::string> MakeRequest(std::string_view key_pem, std::string_view common_name);
// Signs the key of a request, if the request is signed by that key. The certificate carries the
// given name, not the request's.
absl::StatusOr<std::string> SignNode(const Identity& authority, std::string_view request_pem,
                                     std::string_view node, const Validity& validity);

// Reads the first certificate of the text.
absl::StatusOr<Certificate> ReadCertificate(std::string_view pem);
// Certificate::key_sha256 of the key in a request, and of a private key.
absl::StatusOr<std::string> KeyOfRequest(std::string_view request_pem);
absl::StatusOr<std::string> KeyOfPrivate(std::string_view key_pem);

// True when a server's certificate covers this host name or address.
bool IsForHost(std::string_view pem, const std::string& host);

// The key's signature (ECDSA, SHA-256) over a text.
absl::StatusOr<std::string> SignText(std::string_view key_pem, std::string_view text);
// True when the key of this certificate has signed the text.
bool IsSignedBy(std::string_view pem, std::string_view text, std::string_view signature);

enum class Purpose { kServer, kNode };
// OK when the authority signed it for the purpose and it is valid at `now`. UNAUTHENTICATED
// otherwise; the message for an expired or future certificate names its period and `now`.
absl::Status Verify(std::string_view pem, std::string_view authority_pem, Purpose purpose,
                    WallTime now);

}  // namespace sft::tls
