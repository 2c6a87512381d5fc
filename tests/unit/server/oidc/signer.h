#pragma once

#include <absl/strings/escaping.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rsa.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/json.h"

namespace sft::server {

inline std::string Base64Url(std::string_view bytes) {
  return absl::WebSafeBase64Escape({bytes.data(), bytes.size()});
}

// A key that signs tokens, as an issuer has one.
class Signer {
 public:
  static Signer Rsa(std::string id, unsigned bits = 2048) {
    return Signer(std::move(id), "RS256", EVP_RSA_gen(bits));
  }
  static Signer Ec(std::string id) { return Signer(std::move(id), "ES256", EVP_EC_gen("P-256")); }

  // The public key, as a key set has it.
  nlohmann::json Jwk() const {
    if (algorithm_ == "RS256") {
      return {{"kty", "RSA"},
              {"kid", id_},
              {"use", "sig"},
              {"alg", "RS256"},
              {"n", Base64Url(Number(OSSL_PKEY_PARAM_RSA_N))},
              {"e", Base64Url(Number(OSSL_PKEY_PARAM_RSA_E))}};
    }
    return {{"kty", "EC"},
            {"kid", id_},
            {"crv", "P-256"},
            {"x", Base64Url(Number(OSSL_PKEY_PARAM_EC_PUB_X, 32))},
            {"y", Base64Url(Number(OSSL_PKEY_PARAM_EC_PUB_Y, 32))}};
  }
  nlohmann::json Header() const { return {{"alg", algorithm_}, {"kid", id_}, {"typ", "JWT"}}; }
  std::string Sign(const nlohmann::json& claims) const { return Sign(Header(), claims); }
  std::string Sign(const nlohmann::json& header, const nlohmann::json& claims) const {
    return SignText(DumpJson(header), DumpJson(claims));
  }
  std::string SignText(const std::string& header, const std::string& claims) const {
    const std::string text = Base64Url(header) + "." + Base64Url(claims);
    return text + "." + Base64Url(Signature(text));
  }
  // As tokens have it.
  std::string Signature(const std::string& text) const {
    std::string der(1024, '\0');
    size_t size = der.size();
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                          &EVP_MD_CTX_free);
    EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key_.get());
    EVP_DigestSign(context.get(), Bytes(der), &size,
                   reinterpret_cast<const unsigned char*>(text.data()), text.size());
    der.resize(size);
    if (algorithm_ == "RS256") return der;
    const auto* at = reinterpret_cast<const unsigned char*>(der.data());
    const std::unique_ptr<ECDSA_SIG, decltype(&ECDSA_SIG_free)> pair(
        d2i_ECDSA_SIG(nullptr, &at, static_cast<long>(der.size())), &ECDSA_SIG_free);
    std::string raw(64, '\0');
    BN_bn2binpad(ECDSA_SIG_get0_r(pair.get()), Bytes(raw), 32);
    BN_bn2binpad(ECDSA_SIG_get0_s(pair.get()), Bytes(raw) + 32, 32);
    return raw;
  }
  // By a secret, as HS256 does.
  static std::string Hmac(const std::string& secret, const std::string& header,
                          const std::string& claims) {
    const std::string text = Base64Url(header) + "." + Base64Url(claims);
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
         reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest, &size);
    return text + "." + Base64Url({reinterpret_cast<const char*>(digest), size});
  }

 private:
  Signer(std::string id, std::string algorithm, EVP_PKEY* key)
      : id_(std::move(id)), algorithm_(std::move(algorithm)), key_(key, &EVP_PKEY_free) {}
  static unsigned char* Bytes(std::string& text) {
    return reinterpret_cast<unsigned char*>(text.data());
  }
  std::string Number(const char* name, int size = 0) const {
    BIGNUM* number = nullptr;
    EVP_PKEY_get_bn_param(key_.get(), name, &number);
    std::string bytes(static_cast<size_t>(size == 0 ? BN_num_bytes(number) : size), '\0');
    BN_bn2binpad(number, Bytes(bytes), static_cast<int>(bytes.size()));
    BN_free(number);
    return bytes;
  }

  std::string id_, algorithm_;
  std::shared_ptr<EVP_PKEY> key_;
};

inline std::string KeySetOf(const std::vector<Signer>& signers) {
  nlohmann::json keys = nlohmann::json::array();
  for (const Signer& signer : signers) keys.push_back(signer.Jwk());
  return DumpJson(nlohmann::json{{"keys", keys}});
}

}  // namespace sft::server
