#include "server/oidc/ci_exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/plain_text.h"
#include "common/base/utf8.h"
#include "common/io/sha256.h"
#include "server/oidc/jwt.h"

namespace sft::server {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostComment = 200;

bool Fits(const OidcConfig::CiRule& rule, const Json& claims) {
  return std::ranges::all_of(rule.claims, [&](const auto& wanted) {
    const auto& [name, texts] = wanted;
    const std::string has = TextClaim(claims, name);
    return !has.empty() && std::find(texts.begin(), texts.end(), has) != texts.end();
  });
}

// Jobs that a stranger starts by proposing a change, whatever branch they name.
bool IsOfStranger(OidcConfig::CiKind kind, const Json& claims) {
  const std::string event = TextClaim(claims, "event_name");
  if (kind == OidcConfig::CiKind::kGithub) {
    return event.empty() || event.starts_with("pull_request");
  }
  const std::string source = TextClaim(claims, "pipeline_source");
  return source == "merge_request_event" || source == "external_pull_request_event";
}

// Which job it was, for lists of tokens.
std::string CommentOf(OidcConfig::CiKind kind, const Json& claims) {
  const bool github = kind == OidcConfig::CiKind::kGithub;
  const std::string text =
      fmt::format("{} {}, run {}", TextClaim(claims, github ? "repository" : "project_path"),
                  TextClaim(claims, "ref"), TextClaim(claims, github ? "run_id" : "pipeline_id"));
  return WithoutHidden(Shortened(ToUtf8(text), kMostComment));
}

absl::StatusOr<Access::Vouched> VouchFor(const OidcConfig::CiRule& rule, const Json& claims) {
  const std::string id = TextClaim(claims, "jti");
  if (id.empty()) {
    return absl::UnauthenticatedError("the ID token is refused: it has no id (jti)");
  }
  Access::Vouched vouched;
  vouched.user = {"ci-" + rule.name, false, {{rule.project, rule.role}}, kCiIssuer, rule.name};
  vouched.life_us = std::chrono::microseconds(CiExchange::kLife).count();
  vouched.comment = CommentOf(rule.kind, claims);
  vouched.used_id = io::Sha256Hex(rule.issuer + "\n" + id);
  // As long as it would be taken.
  vouched.used_until_us = (claims["exp"].get<int64_t>() + kJwtSkewSeconds + 1) * 1'000'000;
  return vouched;
}

}  // namespace

absl::StatusOr<Access::Vouched> CiExchange::Exchange(const std::string& subject_token) const {
  SFT_ASSIGN_OR_RETURN(const Jwt jwt, ReadJwt(subject_token));
  absl::Status refusal = absl::UnauthenticatedError(
      fmt::format("the ID token is refused: no rule here is for the issuer \"{}\"",
                  Plain(TextClaim(jwt.claims, "iss"), kMostComment)));
  Json claims;  // null: the signature was not looked at yet
  for (const auto& [rule, issuer] : rules_) {
    if (TextClaim(jwt.claims, "iss") != rule.issuer) continue;
    const absl::Status for_us = CheckAudience(jwt.claims, rule.audience);
    if (!for_us.ok()) {
      if (claims.is_null()) refusal = for_us;
      continue;
    }
    // Before any rule is compared: a forged token tells nobody what rules there are.
    if (claims.is_null()) {
      SFT_ASSIGN_OR_RETURN(claims, issuer->Verify(subject_token, rule.audience, ""));
    }
    if (Fits(rule, claims) && !IsOfStranger(rule.kind, claims)) return VouchFor(rule, claims);
    refusal = PermissionDenied(fmt::format(
        "no rule of this server is for that job ({}): the operator compares its claims with [[ci]] "
        "(docs/security.md)",
        CommentOf(rule.kind, claims)));
  }
  return refusal;
}

}  // namespace sft::server
