#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "common/base/status.h"

// Signed tokens of others (RFC 7519) in the compact form (RFC 7515). Pure.

namespace sft::server {

// The signatures that are taken. Which one a token has is said by its header; whether its key may
// make such a one, by the key (KeySet).
enum class JwtAlgorithm { kRs256, kEs256 };

// A token as it was written: nothing of it is proved.
struct Jwt {
  static constexpr size_t kMostBytes = size_t{16} << 10;

  JwtAlgorithm algorithm = JwtAlgorithm::kRs256;
  std::string key_id;
  nlohmann::json claims;  // an object
  std::string signed_text, signature;
};

// UNAUTHENTICATED for one of more than kMostBytes, that is not canonical, has a key twice in an
// object, another algorithm ("none", HS256) or no key id, or whose header names extensions that
// have to be understood ("crit"). Addresses and keys in the header ("jku", "x5u", "jwk") are not
// read.
absl::StatusOr<Jwt> ReadJwt(std::string_view text);

// What the receiver of a token knows of it.
struct JwtExpectation {
  std::string issuer;
  std::string audience;
  std::string nonce;  // empty: none is asked for
};

// Clocks may be so far apart.
inline constexpr int64_t kJwtSkewSeconds = 60;

// OK where a token whose signature is good was made by this issuer for this audience, and is good
// at this time (seconds since the epoch). UNAUTHENTICATED otherwise. It has "exp", "iat" and "sub";
// one for several audiences names this one in "azp", too.
absl::Status CheckClaims(const nlohmann::json& claims, const JwtExpectation& expected,
                         int64_t now_s);

// What of that concerns its audience.
absl::Status CheckAudience(const nlohmann::json& claims, const std::string& audience);

// A claim that is a text; empty where it is not there, or something else.
std::string TextClaim(const nlohmann::json& claims, std::string_view name);

// Strict base64url without padding (RFC 7515, 2). False for a text that is none, or that writes
// its bytes in another way than the one canonical.
bool FromBase64Url(std::string_view text, std::string& bytes);

}  // namespace sft::server
