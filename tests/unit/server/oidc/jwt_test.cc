#include "server/oidc/jwt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/oidc/key_set.h"
#include "tests/unit/server/oidc/signer.h"

namespace sft::server {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

constexpr int64_t kNow = 1'800'000'000;
constexpr char kIssuer[] = "https://login.example.com";

Json Claims(const Json& changes = Json::object()) {
  Json claims = {{"iss", kIssuer}, {"aud", "sft"},      {"sub", "u1"},
                 {"iat", kNow},    {"exp", kNow + 300}, {"nonce", "n1"}};
  claims.merge_patch(changes);  // null takes a claim away
  return claims;
}

const Signer& Rsa() {
  static const Signer signer = Signer::Rsa("r1");
  return signer;
}
const Signer& Ec() {
  static const Signer signer = Signer::Ec("e1");
  return signer;
}

// All that is checked of a token.
absl::Status Check(const std::string& token, const std::string& nonce = "n1") {
  const absl::StatusOr<Jwt> jwt = ReadJwt(token);
  if (!jwt.ok()) return jwt.status();
  const absl::StatusOr<KeySet> keys = KeySet::Parse(KeySetOf({Rsa(), Ec()}));
  if (!keys.ok()) return keys.status();
  SFT_RETURN_IF_ERROR(keys->Verify(*jwt));
  return CheckClaims(jwt->claims, {kIssuer, "sft", nonce}, kNow);
}

TEST(JwtTest, TokensOfBothAlgorithmsAreTaken) {
  EXPECT_EQ(Check(Rsa().Sign(Claims())), absl::OkStatus());
  // A fresh signature each time: its numbers may begin with zeros.
  for (int i = 0; i < 300; ++i) EXPECT_EQ(Check(Ec().Sign(Claims())), absl::OkStatus());
  EXPECT_EQ(Check(Rsa().Sign(Claims({{"aud", {"sft"}}}))), absl::OkStatus());
  EXPECT_EQ(Check(Rsa().Sign(Claims({{"aud", {"other", "sft"}}, {"azp", "sft"}}))),
            absl::OkStatus());
  EXPECT_EQ(Check(Rsa().Sign(Claims({{"exp", kNow - 59}, {"nbf", kNow + 60}}))), absl::OkStatus());
  EXPECT_EQ(Check(Rsa().Sign(Claims({{"nonce", nullptr}})), ""), absl::OkStatus());
  // Where a key might be had is not read.
  Json header = Rsa().Header();
  header["jku"] = "https://evil.example.com/keys";
  header["jwk"] = Signer::Rsa("r1").Jwk();
  header["x5u"] = "https://evil.example.com/chain.pem";
  header["x5c"] = {"AAAA"};
  EXPECT_EQ(Check(Rsa().Sign(header, Claims())), absl::OkStatus());
}

TEST(JwtTest, ClaimsThatDoNotFitAreRefused) {
  const std::pair<Json, const char*> bad[] = {
      {{{"iss", "https://login.example.com/"}}, "(iss)"},
      {{{"iss", nullptr}}, "(iss)"},
      {{{"iss", {kIssuer}}}, "(iss)"},
      {{{"aud", "other"}}, "(aud)"},
      {{{"aud", nullptr}}, "(aud)"},
      {{{"aud", Json::array()}}, "(aud)"},
      {{{"aud", {"sft", 7}}}, "(aud)"},
      {{{"aud", {"sft", "other"}}}, "(azp)"},
      {{{"aud", {"sft", "other"}}, {"azp", "other"}}, "(azp)"},
      {{{"exp", kNow - 60}}, "it ended 60 s ago (exp)"},
      {{{"exp", nullptr}}, "(iat, exp)"},
      {{{"exp", "1900000000"}}, "(iat, exp)"},
      {{{"exp", -1}}, "(iat, exp)"},
      {{{"exp", 1e300}}, "(iat, exp)"},
      {{{"iat", nullptr}}, "(iat, exp)"},
      {{{"iat", kNow + 61}}, "(iat)"},
      {{{"nbf", kNow + 61}}, "(nbf)"},
      {{{"nbf", "soon"}}, "(nbf)"},
      {{{"sub", nullptr}}, "(sub)"},
      {{{"sub", 17}}, "(sub)"},
      {{{"nonce", "n2"}}, "(nonce)"},
      {{{"nonce", nullptr}}, "(nonce)"},
  };
  for (const auto& [changes, why] : bad) {
    const absl::Status refused = Check(Rsa().Sign(Claims(changes)));
    EXPECT_TRUE(absl::IsUnauthenticated(refused)) << changes << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(why)) << changes;
  }
}

TEST(JwtTest, ForgedTokensAreRefused) {
  const std::string claims = DumpJson(Claims()), good = Rsa().Sign(Claims());
  const std::string body = good.substr(0, good.rfind('.'));
  const std::string key = DumpJson(Rsa().Jwk());
  const Signer other = Signer::Rsa("r1");
  // Signed with a key that the token brings along, or says where to get.
  const auto bringing = [&](const char* name, const Json& value) {
    Json all = other.Header();
    all[name] = value;
    return other.Sign(all, Claims());
  };
  const auto header = [](const Json& changes) {
    Json all = Rsa().Header();
    all.merge_patch(changes);
    return all;
  };
  std::string flipped = good;
  flipped[flipped.size() - 10] = flipped[flipped.size() - 10] == 'A' ? 'B' : 'A';
  const std::string ec = Ec().Sign(Claims());
  const std::string ec_body = ec.substr(0, ec.rfind('.') + 1);
  const std::pair<std::string, const char*> bad[] = {
      {Base64Url(R"({"alg":"none","kid":"r1"})") + "." + Base64Url(claims) + ".", "\"none\""},
      {Base64Url(R"({"alg":"None","kid":"r1"})") + "." + Base64Url(claims) + ".x", "\"None\""},
      // Signed with the public key, as if it were a secret.
      {Signer::Hmac(key, R"({"alg":"HS256","kid":"r1"})", claims), "\"HS256\""},
      {Rsa().Sign(header({{"alg", "RS384"}}), Claims()), "\"RS384\""},
      {Rsa().Sign(header({{"alg", nullptr}}), Claims()), "is signed by"},
      {Rsa().Sign(header({{"alg", {"RS256"}}}), Claims()), "is signed by"},
      // One algorithm with the key of the other.
      {Rsa().Sign(header({{"alg", "ES256"}}), Claims()), "signature"},
      {Ec().Sign(header({{"alg", "RS256"}, {"kid", "e1"}}), Claims()), "signature"},
      {other.Sign(Claims()), "signature"},
      {bringing("jwk", other.Jwk()), "signature"},
      {bringing("jku", "https://evil.example.com/keys"), "signature"},
      {bringing("x5u", "https://evil.example.com/chain.pem"), "signature"},
      {flipped, "signature"},
      {body + ".", "signature"},
      {body, "three parts"},
      {good + ".x", "three parts"},
      {"..", "header"},
      {"", "three parts"},
      {Rsa().Sign(header({{"kid", nullptr}}), Claims()), "(kid)"},
      {Rsa().Sign(header({{"kid", "r2"}}), Claims()), "no key"},
      {Rsa().Sign(header({{"crit", {"b64"}}}), Claims()), "(crit)"},
      {Rsa().SignText(R"({"alg":"RS256","kid":"r1","alg":"RS256"})", claims), "key twice"},
      {Rsa().SignText(DumpJson(Rsa().Header()),
                      claims.substr(0, claims.size() - 1) + R"(,"sub":"u2"})"),
       "key twice"},
      {Rsa().SignText(DumpJson(Rsa().Header()), "[]"), "no JSON object"},
      {Rsa().SignText(DumpJson(Rsa().Header()), "{"), "no JSON object"},
      {body + ".==", "base64url"},
      {body + "." + good.substr(good.rfind('.') + 1) + "=", "base64url"},
      {" " + good, "base64url"},
      {good + "\n", "base64url"},
      {Rsa().Sign(Claims({{"x", std::string(Jwt::kMostBytes, 'x')}})), "more than 16384 bytes"},
      // Numbers that no signature has, and lengths.
      {ec_body + Base64Url(std::string(64, '\0')), "signature"},
      {ec_body + Base64Url(std::string(64, '\xff')), "signature"},
      {ec_body + Base64Url(std::string(63, '\1')), "signature"},
      {ec_body + Base64Url(std::string(65, '\1')), "signature"},
      {ec_body + Base64Url(std::string(8192, '\1')), "signature"},
  };
  for (const auto& [token, why] : bad) {
    const absl::Status refused = Check(token);
    EXPECT_FALSE(refused.ok()) << token.substr(0, 100);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(why)) << token.substr(0, 100);
  }
}

TEST(JwtTest, ASignatureIsOfOneTextAlone) {
  const std::string token = Rsa().Sign(Claims());
  ASSERT_EQ(Check(token), absl::OkStatus());
  const std::string signature = token.substr(token.rfind('.'));
  const std::string other = Rsa().Sign(Claims({{"sub", "u2"}}));
  EXPECT_FALSE(Check(other.substr(0, other.rfind('.')) + signature).ok());
}

TEST(JwtTest, Base64UrlHasOneFormOnly) {
  std::string bytes;
  EXPECT_TRUE(FromBase64Url("", bytes));
  EXPECT_TRUE(FromBase64Url("_-8", bytes));
  EXPECT_EQ(bytes, "\xff\xef");
  for (const char* bad : {"_-8=", "_-9", "/+8", "_-8 ", "a", "_\n-8", "a.b"}) {
    EXPECT_FALSE(FromBase64Url(bad, bytes)) << bad;
  }
}

std::string SetOf(const Json& jwk) { return DumpJson(Json{{"keys", {jwk}}}); }

TEST(KeySetTest, KeysThatCannotSignAreLeftOut) {
  const auto changed = [](const Signer& signer, const Json& changes) {
    Json jwk = signer.Jwk();
    jwk.merge_patch(changes);
    return SetOf(jwk);
  };
  EXPECT_TRUE(KeySet::Parse(changed(Rsa(), {{"use", nullptr}, {"alg", nullptr}})).ok());
  EXPECT_TRUE(KeySet::Parse(changed(Ec(), {{"alg", "ES256"}})).ok());
  const std::string bad[] = {
      changed(Rsa(), {{"use", "enc"}}),
      changed(Rsa(), {{"alg", "RS512"}}),
      changed(Rsa(), {{"alg", "HS256"}}),
      changed(Rsa(), {{"kid", nullptr}}),
      changed(Rsa(), {{"kty", "oct"}, {"k", "AAAA"}}),
      changed(Rsa(), {{"e", "AQ"}}),                             // 1
      changed(Rsa(), {{"e", "Ag"}}),                             // 2
      changed(Rsa(), {{"e", Base64Url(std::string(9, '\1'))}}),  // 72 bits
      changed(Rsa(), {{"n", Base64Url(std::string(2000, '\x7f'))}}),
      changed(Rsa(), {{"n", nullptr}}),
      changed(Ec(), {{"crv", "P-384"}}),
      changed(Ec(), {{"x", Ec().Jwk()["y"]}}),  // not on the curve
      changed(Ec(), {{"x", Base64Url(std::string(31, '\1'))}}),
      SetOf(Signer::Rsa("small", 1024).Jwk()),
      R"({"keys": []})",
      R"({"keys": [7, null, []]})",
      R"({"keys": {}})",
      R"([])",
      R"({})",
      "",
      "<html>",
  };
  for (const std::string& text : bad) {
    EXPECT_TRUE(absl::IsFailedPrecondition(KeySet::Parse(text).status())) << text.substr(0, 200);
  }
  // One that is of no use keeps no other from being one.
  const std::string both =
      DumpJson(Json{{"keys", {{{"kty", "oct"}, {"k", "AAAA"}, {"kid", "x"}}, Ec().Jwk()}}});
  EXPECT_EQ(KeySet::Parse(both)->size(), 1u);
}

TEST(KeySetTest, AHugeSetIsRefused) {
  Json many = Json::array();
  for (size_t i = 0; i <= KeySet::kMostKeys; ++i) many.push_back(Ec().Jwk());
  EXPECT_THAT(std::string(KeySet::Parse(DumpJson(Json{{"keys", many}})).status().message()),
              HasSubstr("more than 100 keys"));
  many.erase(many.begin());
  EXPECT_EQ(KeySet::Parse(DumpJson(Json{{"keys", many}}))->size(), KeySet::kMostKeys);
  EXPECT_FALSE(KeySet::Parse(std::string(KeySet::kMostBytes + 1, ' ')).ok());
}

}  // namespace
}  // namespace sft::server
