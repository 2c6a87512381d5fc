#include "server/oidc/key_set.h"

#include <fmt/format.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/err.h>
#include <openssl/param_build.h>

#include "common/base/json.h"

namespace sft::server {
namespace {

using Json = nlohmann::json;

// A deleter that calls the library's free function of the type.
template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using BigNumber = std::unique_ptr<BIGNUM, Free<BN_free>>;
using ParamBuild = std::unique_ptr<OSSL_PARAM_BLD, Free<OSSL_PARAM_BLD_free>>;
using Params = std::unique_ptr<OSSL_PARAM, Free<OSSL_PARAM_free>>;
using KeyContext = std::unique_ptr<EVP_PKEY_CTX, Free<EVP_PKEY_CTX_free>>;
using DigestContext = std::unique_ptr<EVP_MD_CTX, Free<EVP_MD_CTX_free>>;
using Signature = std::unique_ptr<ECDSA_SIG, Free<ECDSA_SIG_free>>;

constexpr size_t kCoordinate = 32;  // bytes of a number of P-256
// RSA: the modulus in bits; more takes too long to verify.
constexpr int kLeastBits = 2048, kMostBits = 8192;
constexpr size_t kMostExponent = 8;  // bytes

const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

BigNumber NumberOf(std::string_view bytes) {
  return BigNumber(BN_bin2bn(Bytes(bytes), static_cast<int>(bytes.size()), nullptr));
}

std::shared_ptr<EVP_PKEY> MakeKey(const char* type, OSSL_PARAM_BLD* build) {
  const Params params(OSSL_PARAM_BLD_to_param(build));
  const KeyContext context(EVP_PKEY_CTX_new_from_name(nullptr, type, nullptr));
  EVP_PKEY* key = nullptr;
  if (params == nullptr || context == nullptr || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, params.get()) != 1) {
    ERR_clear_error();
    return nullptr;
  }
  return {key, EVP_PKEY_free};
}

// Null for a key that is none, or too small or too large.
std::shared_ptr<EVP_PKEY> RsaKey(const Json& jwk) {
  std::string modulus, exponent;
  if (!FromBase64Url(TextClaim(jwk, "n"), modulus) || !FromBase64Url(TextClaim(jwk, "e"), exponent))
    return nullptr;
  if (modulus.size() > kMostBits / 8 + 1 || exponent.size() > kMostExponent) return nullptr;
  const BigNumber n = NumberOf(modulus), e = NumberOf(exponent);
  const int bits = BN_num_bits(n.get());
  if (bits < kLeastBits || bits > kMostBits) return nullptr;
  if (BN_is_odd(e.get()) != 1 || BN_is_one(e.get()) == 1) return nullptr;
  const ParamBuild build(OSSL_PARAM_BLD_new());
  OSSL_PARAM_BLD_push_BN(build.get(), OSSL_PKEY_PARAM_RSA_N, n.get());
  OSSL_PARAM_BLD_push_BN(build.get(), OSSL_PKEY_PARAM_RSA_E, e.get());
  return MakeKey("RSA", build.get());
}

// Null for a key of another curve, or a point that is not on it.
std::shared_ptr<EVP_PKEY> EcKey(const Json& jwk) {
  std::string x, y;
  if (TextClaim(jwk, "crv") != "P-256" || !FromBase64Url(TextClaim(jwk, "x"), x) ||
      !FromBase64Url(TextClaim(jwk, "y"), y) || x.size() != kCoordinate ||
      y.size() != kCoordinate) {
    return nullptr;
  }
  const std::string point = '\x04' + x + y;  // not compressed
  const ParamBuild build(OSSL_PARAM_BLD_new());
  OSSL_PARAM_BLD_push_utf8_string(build.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0);
  OSSL_PARAM_BLD_push_octet_string(build.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(),
                                   point.size());
  return MakeKey("EC", build.get());
}

// The two numbers that a token has, one after the other, as the library reads them (DER). Empty:
// they are none.
std::string DerOf(std::string_view raw) {
  if (raw.size() != 2 * kCoordinate) return "";
  BigNumber r = NumberOf(raw.substr(0, kCoordinate)), s = NumberOf(raw.substr(kCoordinate));
  const Signature signature(ECDSA_SIG_new());
  if (signature == nullptr || ECDSA_SIG_set0(signature.get(), r.get(), s.get()) != 1) return "";
  (void)r.release();  // the signature's
  (void)s.release();
  unsigned char* der = nullptr;
  const int size = i2d_ECDSA_SIG(signature.get(), &der);
  if (size <= 0) return "";
  std::string text(reinterpret_cast<const char*>(der), static_cast<size_t>(size));
  OPENSSL_free(der);
  return text;
}

bool HasSigned(EVP_PKEY* key, const Jwt& jwt) {
  const std::string signature =
      jwt.algorithm == JwtAlgorithm::kEs256 ? DerOf(jwt.signature) : jwt.signature;
  if (signature.empty()) return false;
  const DigestContext context(EVP_MD_CTX_new());
  const bool good = context != nullptr &&
                    EVP_DigestVerifyInit(context.get(), nullptr, EVP_sha256(), nullptr, key) == 1 &&
                    EVP_DigestVerify(context.get(), Bytes(signature), signature.size(),
                                     Bytes(jwt.signed_text), jwt.signed_text.size()) == 1;
  ERR_clear_error();
  return good;
}

}  // namespace

absl::StatusOr<KeySet> KeySet::Parse(std::string_view json) {
  if (json.size() > kMostBytes) {
    return FailedPrecondition(fmt::format("the key set has more than {} bytes", kMostBytes));
  }
  const Json object = ParseJson(json, {.keys_once = true});
  const auto list = object.is_object() ? object.find("keys") : object.end();
  if (!object.is_object() || list == object.end() || !list->is_array()) {
    return FailedPrecondition("the key set is none: a JSON object with an array \"keys\"");
  }
  if (list->size() > kMostKeys) {
    return FailedPrecondition(fmt::format("the key set has more than {} keys", kMostKeys));
  }
  KeySet set;
  for (const Json& jwk : *list) {
    if (!jwk.is_object()) continue;
    const bool rsa = TextClaim(jwk, "kty") == "RSA", ec = TextClaim(jwk, "kty") == "EC";
    if (!rsa && !ec) continue;
    if (jwk.contains("use") && TextClaim(jwk, "use") != "sig") continue;
    if (jwk.contains("alg") && TextClaim(jwk, "alg") != (rsa ? "RS256" : "ES256")) continue;
    Key key{TextClaim(jwk, "kid"), rsa ? JwtAlgorithm::kRs256 : JwtAlgorithm::kEs256,
            rsa ? RsaKey(jwk) : EcKey(jwk)};
    if (!key.id.empty() && key.key != nullptr) set.keys_.push_back(std::move(key));
  }
  if (set.keys_.empty()) {
    return FailedPrecondition("the key set has no key for RS256 or ES256 that is of use");
  }
  return set;
}

absl::Status KeySet::Verify(const Jwt& jwt) const {
  bool known = false;
  for (const Key& key : keys_) {
    if (key.id != jwt.key_id) continue;
    known = true;
    if (key.algorithm == jwt.algorithm && HasSigned(key.key.get(), jwt)) return absl::OkStatus();
  }
  if (!known) return NotFound("no key of that id");
  return absl::UnauthenticatedError(
      "the ID token is refused: its signature is not that of the key that it names (kid)");
}

}  // namespace sft::server
