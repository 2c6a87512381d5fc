#include "server/oidc/company_login.h"

#include <absl/strings/escaping.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/plain_text.h"
#include "common/hub/patience.h"
#include "server/state/names.h"

namespace sft::server {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostFieldBytes = 4096, kLongestName = 63;
constexpr size_t kChallengeBytes = 43;  // a SHA-256 in base64url
constexpr int kDefaultInterval = 5, kSlowDown = 5, kLongestInterval = 300;  // seconds (RFC 8628)
constexpr int kLongestDeviceLogin = 3600;
constexpr char kDeviceGrant[] = "urn:ietf:params:oauth:grant-type:device_code";
// Names in the audit that are nobody's.
constexpr std::string_view kTakenNames[] = {"local", "nobody", "join-token"};

absl::Status CheckStart(const v1::StartLoginRequest& request) {
  std::string digest;
  const bool good = FromBase64Url(request.code_challenge(), digest) &&
                    request.code_challenge().size() == kChallengeBytes &&
                    request.state().size() >= 16 && request.nonce().size() >= 16;
  if (!good) {
    return InvalidArgument(
        "a login begins with a state and a nonce of 16 bytes or more, and a code_challenge of "
        "S256 (or as a device)");
  }
  for (const std::string& field : {request.redirect_uri(), request.state(), request.nonce()}) {
    if (field.size() > kMostFieldBytes) {
      return InvalidArgument(fmt::format("a field has more than {} bytes", kMostFieldBytes));
    }
  }
  return absl::OkStatus();
}

int SecondsIn(const Json& object, const char* name, int fallback, int most) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_integer()) return fallback;
  return static_cast<int>(std::clamp<int64_t>(found->get<int64_t>(), 1, most));
}

// What the provider said instead of tokens.
absl::Status Refusal(const std::string& issuer, const JsonAnswer& answer) {
  const std::string error = TextClaim(answer.body, "error");
  const std::string said = fmt::format("{} says: {}", issuer, answer.Reason());
  if (answer.status >= 500 || answer.status == 429) return Unavailable(said);
  if (error == "access_denied") return PermissionDenied(said);
  if (error == "invalid_grant" || error == "expired_token") {
    return absl::UnauthenticatedError(said + "; begin the login anew");
  }
  return FailedPrecondition(
      said +
      "; the operator looks at client_id, client_secret_file and what the provider allows "
      "this client");
}

// A person's name as names are here; empty: there is nothing of it.
std::string NameFrom(std::string_view claim) {
  std::string name(claim.substr(0, kLongestName));
  for (char& c : name) {
    if (!IsValidLabel(std::string("a") + c)) c = '-';
  }
  const size_t begin = name.find_first_not_of("-_.");
  return begin == name.npos ? "" : name.substr(begin);
}

absl::Status CheckName(const std::string& name) {
  const bool taken =
      std::find(std::begin(kTakenNames), std::end(kTakenNames), name) != std::end(kTakenNames);
  if (IsValidLabel(name) && !taken && !name.starts_with("ci-")) return absl::OkStatus();
  return PermissionDenied(fmt::format(
      "\"{}\" can be nobody's name here; the operator chooses another claim (user_claim)", name));
}

// A list of texts, or one text.
Json GroupsIn(const Json& claims, const std::string& name) {
  const auto found = claims.find(name);
  if (found == claims.end()) return Json();
  return found->is_string() ? Json::array({*found}) : *found;
}

}  // namespace

absl::StatusOr<JsonAnswer> CompanyLogin::Ask(const std::string& url, Issuer::Form form) const {
  SFT_ASSIGN_OR_RETURN(const IssuerEndpoints endpoints, issuer_->Endpoints());
  std::vector<std::pair<std::string, std::string>> headers;
  const std::string& secret = provider_.client_secret;
  if (secret.empty() || endpoints.secret_in_body) {
    form.emplace_back("client_id", provider_.client_id);
    if (!secret.empty()) form.emplace_back("client_secret", secret);
  } else {
    const std::string pair = hub::EscapedPart(provider_.client_id) + ":" + hub::EscapedPart(secret);
    headers.emplace_back("Authorization", "Basic " + absl::Base64Escape(pair));
  }
  return issuer_->Post(url, form, headers);
}

absl::StatusOr<JsonAnswer> CompanyLogin::AskForTokens(Issuer::Form form) const {
  SFT_ASSIGN_OR_RETURN(const IssuerEndpoints endpoints, issuer_->Endpoints());
  if (endpoints.token.empty()) {
    return FailedPrecondition(fmt::format("{} has no token endpoint", issuer_->url()));
  }
  return Ask(endpoints.token, std::move(form));
}

absl::StatusOr<v1::StartLoginResponse> CompanyLogin::Start(
    const v1::StartLoginRequest& request) const {
  if (request.device()) return StartDevice();
  SFT_RETURN_IF_ERROR(CheckStart(request));
  SFT_ASSIGN_OR_RETURN(const IssuerEndpoints endpoints, issuer_->Endpoints());
  if (endpoints.authorization.empty()) {
    return FailedPrecondition(fmt::format("{} has no logins with a browser", issuer_->url()));
  }
  Issuer::Form query = {{"response_type", "code"},
                        {"client_id", provider_.client_id},
                        {"redirect_uri", request.redirect_uri()},
                        {"scope", fmt::format("{}", fmt::join(provider_.scopes, " "))},
                        {"state", request.state()},
                        {"nonce", request.nonce()},
                        {"code_challenge", request.code_challenge()},
                        {"code_challenge_method", "S256"}};
  query.insert(query.end(), provider_.parameters.begin(), provider_.parameters.end());
  v1::StartLoginResponse response;
  const bool has_query = endpoints.authorization.find('?') != std::string::npos;
  response.set_authorization_url(endpoints.authorization + (has_query ? "&" : "?") +
                                 FormText(query));
  return response;
}

absl::StatusOr<v1::StartLoginResponse> CompanyLogin::StartDevice() const {
  SFT_ASSIGN_OR_RETURN(const IssuerEndpoints endpoints, issuer_->Endpoints());
  if (endpoints.device.empty()) {
    return FailedPrecondition(
        fmt::format("{} has no logins of devices (RFC 8628): log in where a browser can be opened, "
                    "`sftctl login --oidc`",
                    issuer_->url()));
  }
  SFT_ASSIGN_OR_RETURN(
      const JsonAnswer answer,
      Ask(endpoints.device, {{"client_id", provider_.client_id},
                             {"scope", fmt::format("{}", fmt::join(provider_.scopes, " "))}}));
  if (answer.status != 200) return Refusal(issuer_->url(), answer);
  v1::StartLoginResponse response;
  response.set_device_code(TextClaim(answer.body, "device_code"));
  response.set_user_code(TextClaim(answer.body, "user_code"));
  response.set_verification_uri(TextClaim(answer.body, "verification_uri"));
  response.set_expires_in_seconds(
      SecondsIn(answer.body, "expires_in", kLongestDeviceLogin, kLongestDeviceLogin));
  response.set_interval_seconds(
      SecondsIn(answer.body, "interval", kDefaultInterval, kLongestInterval));
  const bool shown = IsPlain(response.user_code()) && !response.user_code().empty() &&
                     IsIssuerUrl(response.verification_uri());
  if (shown && !response.device_code().empty()) return response;
  return FailedPrecondition(
      fmt::format("{} begins a login of a device without a code and a page", issuer_->url()));
}

absl::StatusOr<CompanyLogin::Finished> CompanyLogin::Finish(
    const v1::FinishLoginRequest& request) const {
  const bool device = !request.device_code().empty();
  if (device == !request.code().empty() || (!device && request.nonce().empty())) {
    return InvalidArgument(
        "a login ends with a device_code, or with a code, its nonce and verifier");
  }
  Issuer::Form form;
  if (device) {
    form = {{"grant_type", kDeviceGrant}, {"device_code", request.device_code()}};
  } else {
    form = {{"grant_type", "authorization_code"},
            {"code", request.code()},
            {"redirect_uri", request.redirect_uri()},
            {"code_verifier", request.code_verifier()}};
  }
  SFT_ASSIGN_OR_RETURN(const JsonAnswer answer, AskForTokens(std::move(form)));
  const std::string error = TextClaim(answer.body, "error");
  if (device && error == "authorization_pending") return Finished{};
  if (device && error == "slow_down") return Finished{std::nullopt, kSlowDown};
  if (answer.status != 200) return Refusal(issuer_->url(), answer);
  SFT_ASSIGN_OR_RETURN(Person person, PersonOf(answer, request.nonce(), ""));
  SFT_RETURN_IF_ERROR(CheckName(person.user.name));
  if (!person.user.admin && person.user.roles.empty()) {
    return PermissionDenied(
        fmt::format("{} is in no group that has a role here: the operator gives roles to groups of "
                    "{} ([[role]], docs/security.md)",
                    person.user.name, issuer_->url()));
  }
  return Finished{std::move(person)};
}

absl::StatusOr<Person> CompanyLogin::Refresh(const std::string& refresh_token,
                                             const std::string& subject) const {
  SFT_ASSIGN_OR_RETURN(const JsonAnswer answer, AskForTokens({{"grant_type", "refresh_token"},
                                                              {"refresh_token", refresh_token}}));
  if (answer.status != 200) return Refusal(issuer_->url(), answer);
  SFT_ASSIGN_OR_RETURN(Person person, PersonOf(answer, "", subject));
  if (person.refresh_token.empty()) person.refresh_token = refresh_token;
  return person;
}

absl::StatusOr<Person> CompanyLogin::PersonOf(const JsonAnswer& answer, const std::string& nonce,
                                              const std::string& subject) const {
  const std::string id_token = TextClaim(answer.body, "id_token");
  Json claims = Json::object();
  if (!id_token.empty()) {
    SFT_ASSIGN_OR_RETURN(claims, issuer_->Verify(id_token, provider_.client_id, nonce));
  } else if (subject.empty()) {
    return FailedPrecondition(fmt::format("{} gave no ID token", issuer_->url()));
  }
  if (!claims.contains(provider_.groups_claim) || !claims.contains(provider_.user_claim)) {
    SFT_RETURN_IF_ERROR(AddUserinfo(TextClaim(answer.body, "access_token"),
                                    id_token.empty() ? subject : TextClaim(claims, "sub"), claims));
  }
  const std::string sub = TextClaim(claims, "sub");
  if (sub.empty() || (!subject.empty() && sub != subject)) {
    return absl::UnauthenticatedError(fmt::format("{} answers for somebody else", issuer_->url()));
  }
  Person person;
  person.user.issuer = issuer_->url();
  person.user.subject = sub;
  person.user.name = NameFrom(TextClaim(claims, provider_.user_claim));
  if (person.user.name.empty()) person.user.name = NameFrom(sub);
  AddRoles(GroupsIn(claims, provider_.groups_claim), person.user);
  person.refresh_token = TextClaim(answer.body, "refresh_token");
  return person;
}

absl::Status CompanyLogin::AddUserinfo(const std::string& access_token, const std::string& subject,
                                       Json& claims) const {
  SFT_ASSIGN_OR_RETURN(const IssuerEndpoints endpoints, issuer_->Endpoints());
  if (endpoints.userinfo.empty() || access_token.empty()) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const JsonAnswer more, issuer_->Get(endpoints.userinfo, access_token));
  if (more.status != 200) return Refusal(issuer_->url(), more);
  if (TextClaim(more.body, "sub") != subject) {
    return absl::UnauthenticatedError(
        fmt::format("the userinfo endpoint of {} answers for somebody else", issuer_->url()));
  }
  for (const auto& [name, value] : more.body.items()) {
    if (!claims.contains(name)) claims[name] = value;
  }
  return absl::OkStatus();
}

void CompanyLogin::AddRoles(const Json& groups, UserRecord& user) const {
  if (!groups.is_array()) return;
  for (const OidcConfig::GroupRole& role : roles_) {
    if (std::find(groups.begin(), groups.end(), Json(role.group)) == groups.end()) continue;
    user.admin = user.admin || role.admin;
    if (role.admin) continue;
    Role& has = user.roles[role.project];
    has = std::max(has, role.role);
  }
}

}  // namespace sft::server
