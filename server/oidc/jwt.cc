#include "server/oidc/jwt.h"

#include <absl/strings/escaping.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "common/base/json.h"
#include "common/base/plain_text.h"

namespace sft::server {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostOfClaim = 200;

absl::Status Refused(std::string_view why) {
  return absl::UnauthenticatedError(fmt::format("the ID token is refused: {}", why));
}

std::string Shown(const std::string& text) { return "\"" + Plain(text, kMostOfClaim) + "\""; }

absl::StatusOr<Json> ReadObject(std::string_view part, const char* what) {
  std::string text;
  if (!FromBase64Url(part, text)) return Refused(fmt::format("its {} is no base64url", what));
  JsonProblem problem;
  Json object = ParseJson(text, {.keys_once = true}, &problem);
  if (object.is_object()) return object;
  return Refused(problem.kind == JsonProblem::kTwice
                     ? fmt::format("its {} has a key twice", what)
                     : fmt::format("its {} is no JSON object", what));
}

// Seconds since the epoch; fractions are cut off.
std::optional<int64_t> Seconds(const Json& claims, const char* name) {
  const auto found = claims.find(name);
  if (found == claims.end() || !found->is_number()) return std::nullopt;
  constexpr double kMost = 1e12;  // in microseconds it is a number of 64 bits
  const double seconds = found->get<double>();
  if (!(seconds >= 0 && seconds <= kMost)) return std::nullopt;
  return static_cast<int64_t>(seconds);
}

absl::Status CheckTimes(const Json& claims, int64_t now_s) {
  const auto expires = Seconds(claims, "exp"), issued = Seconds(claims, "iat");
  if (!expires.has_value() || !issued.has_value()) {
    return Refused("it does not say when it was made and ends (iat, exp)");
  }
  if (now_s >= *expires + kJwtSkewSeconds) {
    return Refused(fmt::format("it ended {} s ago (exp)", now_s - *expires));
  }
  if (*issued > now_s + kJwtSkewSeconds) {
    return Refused("it was made in the future (iat): compare the clocks");
  }
  if (!claims.contains("nbf")) return absl::OkStatus();
  const auto begins = Seconds(claims, "nbf");
  if (begins.has_value() && *begins <= now_s + kJwtSkewSeconds) return absl::OkStatus();
  return Refused("it is not good yet (nbf): compare the clocks");
}

}  // namespace

bool FromBase64Url(std::string_view text, std::string& bytes) {
  // The library also takes padding, white space and bits that stand for nothing.
  if (!absl::WebSafeBase64Unescape({text.data(), text.size()}, &bytes)) return false;
  return absl::WebSafeBase64Escape({bytes.data(), bytes.size()}) == text;
}

absl::StatusOr<Jwt> ReadJwt(std::string_view text) {
  if (text.size() > Jwt::kMostBytes) {
    return Refused(fmt::format("it has more than {} bytes", Jwt::kMostBytes));
  }
  const size_t first = text.find('.'), last = text.rfind('.');
  if (first == text.npos || text.find('.', first + 1) != last || first == last) {
    return Refused("it is no JSON Web Token, which is three parts with dots between them");
  }
  SFT_ASSIGN_OR_RETURN(const Json header, ReadObject(text.substr(0, first), "header"));
  Jwt jwt;
  SFT_ASSIGN_OR_RETURN(jwt.claims, ReadObject(text.substr(first + 1, last - first - 1), "payload"));
  if (header.contains("crit")) return Refused("its header has extensions (crit)");
  const std::string algorithm = TextClaim(header, "alg");
  if (algorithm != "RS256" && algorithm != "ES256") {
    return Refused(
        fmt::format("it is signed by {}, and RS256 and ES256 are taken", Shown(algorithm)));
  }
  jwt.algorithm = algorithm == "RS256" ? JwtAlgorithm::kRs256 : JwtAlgorithm::kEs256;
  jwt.key_id = TextClaim(header, "kid");
  if (jwt.key_id.empty()) return Refused("it does not say which key has signed it (kid)");
  if (!FromBase64Url(text.substr(last + 1), jwt.signature) || jwt.signature.empty()) {
    return Refused("its signature is no base64url");
  }
  jwt.signed_text = text.substr(0, last);
  return jwt;
}

absl::Status CheckAudience(const Json& claims, const std::string& audience) {
  const auto found = claims.find("aud");
  const Json given = found == claims.end() ? Json() : *found;
  const Json list = given.is_array() ? given : Json::array({given});
  const auto is_text = [](const Json& one) { return one.is_string(); };
  if (list.empty() || !std::all_of(list.begin(), list.end(), is_text)) {
    return Refused("it names no audience (aud)");
  }
  if (std::find(list.begin(), list.end(), Json(audience)) == list.end()) {
    return Refused(fmt::format("it is for {}, not for {} (aud)",
                               Shown(list.front().get<std::string>()), Shown(audience)));
  }
  if (list.size() > 1 && TextClaim(claims, "azp") != audience) {
    return Refused("it is for several audiences, and was not given to this one (azp)");
  }
  return absl::OkStatus();
}

absl::Status CheckClaims(const Json& claims, const JwtExpectation& expected, int64_t now_s) {
  const std::string issuer = TextClaim(claims, "iss");
  if (issuer != expected.issuer) {
    return Refused(
        fmt::format("it is of {}, not of {} (iss)", Shown(issuer), Shown(expected.issuer)));
  }
  SFT_RETURN_IF_ERROR(CheckAudience(claims, expected.audience));
  SFT_RETURN_IF_ERROR(CheckTimes(claims, now_s));
  if (TextClaim(claims, "sub").empty()) return Refused("it does not say of whom it is (sub)");
  if (!expected.nonce.empty() && TextClaim(claims, "nonce") != expected.nonce) {
    return Refused("it belongs to another login (nonce)");
  }
  return absl::OkStatus();
}

std::string TextClaim(const Json& claims, std::string_view name) {
  const auto found = claims.find(name);
  return found != claims.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace sft::server
