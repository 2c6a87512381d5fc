// What is read of others' ID tokens and key sets before a signature proves anything: the input is
// a token, a key set, and the claims of a token; and a token made of it with the key of a set.

#include "common/base/json.h"
#include "server/oidc/jwt.h"
#include "server/oidc/key_set.h"
#include "tests/fuzz/input.h"

namespace {

// A key whose other half was thrown away.
constexpr char kKeySet[] = R"({"keys": [{"kty": "EC", "kid": "a", "crv": "P-256",
  "x": "rK8Iu5zvIaXqQA-vcYFkAJcisuu_Kw3mjIPB6-PRGms",
  "y": "sbROhXqGGSk7yl_ANMTL8ONLRFoukJWx_SQ5hBWT7po"}]})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sft::server;  // NOLINT: one function
  const std::string text(reinterpret_cast<const char*>(data), size);
  static const KeySet keys = *KeySet::Parse(kKeySet);
  for (const std::string& token : {text, "eyJhbGciOiJFUzI1NiIsImtpZCI6ImEifQ." + text}) {
    const auto jwt = ReadJwt(token);
    if (!jwt.ok()) continue;
    sft::fuzz::Require(token.size() <= Jwt::kMostBytes && jwt->claims.is_object());
    sft::fuzz::Require(!jwt->key_id.empty() && !jwt->signature.empty());
    sft::fuzz::Require(!keys.Verify(*jwt).ok());
    (void)CheckClaims(jwt->claims, {"https://a.example", "sft", "n"}, 1'800'000'000);
  }
  if (const auto set = KeySet::Parse(text); set.ok()) {
    sft::fuzz::Require(set->size() > 0 && set->size() <= KeySet::kMostKeys);
  }
  std::string bytes;
  if (FromBase64Url(text, bytes)) sft::fuzz::Require(bytes.size() <= size);
  const nlohmann::json claims = sft::ParseJson(text);
  if (claims.is_object()) {
    (void)CheckClaims(claims, {"https://a.example", "sft", ""}, 1'800'000'000);
  }
  return 0;
}
