#pragma once

#include <openssl/evp.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "server/oidc/jwt.h"

namespace sft::server {

// The public keys of an issuer (RFC 7517). Does not change; thread-safe.
class KeySet {
 public:
  static constexpr size_t kMostKeys = 100, kMostBytes = size_t{256} << 10;

  // Keys that cannot have signed a token that is taken are left out: of another kind, for
  // encryption, RSA below 2,048 bits, without an id. FAILED_PRECONDITION for a text that is no key
  // set, has more than kMostKeys, or none that is of use.
  static absl::StatusOr<KeySet> Parse(std::string_view json);

  // NOT_FOUND where no key has the token's id; UNAUTHENTICATED where none of those that have it has
  // signed it.
  absl::Status Verify(const Jwt& jwt) const;

  size_t size() const { return keys_.size(); }

 private:
  struct Key {
    std::string id;
    JwtAlgorithm algorithm;  // the one that it is for
    std::shared_ptr<EVP_PKEY> key;
  };
  std::vector<Key> keys_;
};

}  // namespace sft::server
