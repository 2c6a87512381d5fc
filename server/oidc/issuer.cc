#include "server/oidc/issuer.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/json.h"
#include "common/base/plain_text.h"
#include "common/hub/patience.h"
#include "common/rpc/endpoint.h"

namespace sft::server {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostAnswer = KeySet::kMostBytes;
constexpr size_t kMostReason = 300;
constexpr char kDiscovery[] = "/.well-known/openid-configuration";

// The host of an address, in lower case, without brackets.
std::string HostOf(const std::string& url) {
  std::string rest = hub::OriginOf(url);
  rest = rest.substr(std::min(rest.size(), rest.find("://") + 3));
  rest = rest.substr(0, rest.rfind(':'));
  return rest.starts_with('[') ? rest.substr(1, rest.size() - 2) : rest;
}

bool IsLoopbackHttp(const std::string& url) {
  return hub::OriginOf(url).starts_with("http://") && rpc::IsLoopback(HostOf(url));
}

}  // namespace

std::string JsonAnswer::Reason() const {
  const std::string error = TextClaim(body, "error"), more = TextClaim(body, "error_description");
  if (error.empty()) return fmt::format("HTTP status {}", status);
  return Plain(more.empty() ? error : error + ": " + more, kMostReason);
}

bool IsIssuerUrl(const std::string& url) {
  if (url.find_first_of("?#") != url.npos || hub::OriginOf(url).empty()) return false;
  return hub::OriginOf(url).starts_with("https://") || IsLoopbackHttp(url);
}

std::string FormText(const Issuer::Form& form) {
  std::string text;
  for (const auto& [name, value] : form) {
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", hub::EscapedPart(name),
                        hub::EscapedPart(value));
  }
  return text;
}

absl::StatusOr<JsonAnswer> Issuer::Send(const hub::HttpRequest& request) const {
  SFT_ASSIGN_OR_RETURN(const hub::HttpResponse response, http_->Send(request));
  SFT_ASSIGN_OR_RETURN(const std::string text, hub::ReadBody(*response.body, kMostAnswer));
  JsonAnswer answer{response.status, ParseJson(text, {.keys_once = true})};
  if (!answer.body.is_object()) answer.body = Json::object();
  return answer;
}

absl::StatusOr<JsonAnswer> Issuer::Post(
    const std::string& url, const Form& form,
    const std::vector<std::pair<std::string, std::string>>& headers) const {
  hub::HttpRequest request{.method = "POST", .url = url, .headers = headers};
  request.headers.emplace_back("Content-Type", "application/x-www-form-urlencoded");
  request.headers.emplace_back("Accept", "application/json");
  request.body = FormText(form);
  return Send(request);
}

absl::StatusOr<JsonAnswer> Issuer::Get(const std::string& url, const std::string& bearer) const {
  hub::HttpRequest request{.url = url, .headers = {{"Accept", "application/json"}}};
  if (!bearer.empty()) request.headers.emplace_back("Authorization", "Bearer " + bearer);
  return Send(request);
}

absl::StatusOr<Json> Issuer::Document(const std::string& url) const {
  absl::StatusOr<JsonAnswer> answer = Get(url);
  if (!answer.ok()) return Annotate(answer.status(), url);
  if (answer->status == 200) return std::move(answer->body);
  const std::string said = fmt::format("{} answers with {}", url, answer->Reason());
  if (answer->status == 429 || answer->status >= 500) return Unavailable(said);
  return FailedPrecondition(said);
}

absl::StatusOr<std::string> Issuer::AddressIn(const Json& document, const char* name,
                                              bool needed) const {
  std::string url = TextClaim(document, name);
  if (url.empty() && !needed) return url;
  const std::string origin = hub::OriginOf(url);
  if (origin.starts_with("https://") || (IsLoopbackHttp(url_) && IsLoopbackHttp(url))) return url;
  return FailedPrecondition(fmt::format("{}{} has no {} that is https", url_, kDiscovery, name));
}

absl::StatusOr<Issuer::KnownPtr> Issuer::Fetch() const {
  const std::string base = url_.substr(0, url_.size() - (url_.ends_with('/') ? 1 : 0));
  SFT_ASSIGN_OR_RETURN(const Json document, Document(base + kDiscovery));
  if (TextClaim(document, "issuer") != url_) {
    return FailedPrecondition(fmt::format("{}{} is of the issuer \"{}\": name it so, byte for byte",
                                          base, kDiscovery,
                                          Plain(TextClaim(document, "issuer"), kMostReason)));
  }
  IssuerEndpoints endpoints;
  SFT_ASSIGN_OR_RETURN(const std::string keys, AddressIn(document, "jwks_uri", true));
  SFT_ASSIGN_OR_RETURN(endpoints.authorization,
                       AddressIn(document, "authorization_endpoint", false));
  SFT_ASSIGN_OR_RETURN(endpoints.token, AddressIn(document, "token_endpoint", false));
  SFT_ASSIGN_OR_RETURN(endpoints.userinfo, AddressIn(document, "userinfo_endpoint", false));
  SFT_ASSIGN_OR_RETURN(endpoints.device,
                       AddressIn(document, "device_authorization_endpoint", false));
  const Json methods = document.value("token_endpoint_auth_methods_supported", Json());
  const auto has = [&](const char* method) {
    return std::find(methods.begin(), methods.end(), Json(method)) != methods.end();
  };
  endpoints.secret_in_body =
      methods.is_array() && has("client_secret_post") && !has("client_secret_basic");
  SFT_ASSIGN_OR_RETURN(const Json key_document, Document(keys));
  absl::StatusOr<KeySet> set = KeySet::Parse(DumpJson(key_document));
  if (!set.ok()) return Annotate(set.status(), keys);
  return std::make_shared<const Known>(Known{std::move(endpoints), *std::move(set), clock_.Mono()});
}

std::optional<absl::StatusOr<Issuer::KnownPtr>> Issuer::FromMemory(const KnownPtr& unknown_key) {
  const MutexLock lock(mutex_);
  const MonoTime now = clock_.Mono();
  const bool usable = known_ != nullptr && now - known_->at < kStale;
  const bool fresh = known_ != nullptr && now - known_->at < kFresh && known_ != unknown_key;
  const Nanos pause = usable ? Nanos(kPause) : Nanos(kFirstPause);
  const bool rests = tried_.has_value() && now - *tried_ < pause;
  if (fresh || (usable && rests)) return known_;
  if (rests && !failure_.ok()) return failure_;
  return std::nullopt;
}

absl::StatusOr<Issuer::KnownPtr> Issuer::Learn(const KnownPtr& unknown_key) {
  if (auto known = FromMemory(unknown_key); known.has_value()) return *std::move(known);
  const MutexLock fetching(fetching_);
  // Another caller may have asked meanwhile.
  if (auto known = FromMemory(unknown_key); known.has_value()) return *std::move(known);
  absl::StatusOr<KnownPtr> fetched = Fetch();
  const MutexLock lock(mutex_);
  tried_ = clock_.Mono();
  failure_ = fetched.status();
  if (fetched.ok()) {
    known_ = *fetched;
  } else if (known_ == nullptr || *tried_ - known_->at >= kStale) {
    return failure_;
  }
  return known_;
}

absl::StatusOr<IssuerEndpoints> Issuer::Endpoints() {
  SFT_ASSIGN_OR_RETURN(const KnownPtr known, Learn(nullptr));
  return known->endpoints;
}

absl::StatusOr<Json> Issuer::Verify(const std::string& token, const std::string& audience,
                                    const std::string& nonce) {
  SFT_ASSIGN_OR_RETURN(Jwt jwt, ReadJwt(token));
  // Before anybody is asked for keys: nobody makes this server do so with a token of elsewhere.
  SFT_RETURN_IF_ERROR(
      CheckClaims(jwt.claims, {url_, audience, nonce}, UnixMicros(clock_.Wall()) / 1'000'000));
  SFT_ASSIGN_OR_RETURN(KnownPtr known, Learn(nullptr));
  absl::Status good = known->keys.Verify(jwt);
  if (absl::IsNotFound(good)) {
    SFT_ASSIGN_OR_RETURN(known, Learn(known));
    good = known->keys.Verify(jwt);
  }
  if (absl::IsNotFound(good)) {
    return absl::UnauthenticatedError(fmt::format(
        "the ID token is refused: {} has no key \"{}\" (kid)", url_, Plain(jwt.key_id, 80)));
  }
  SFT_RETURN_IF_ERROR(good);
  return std::move(jwt.claims);
}

}  // namespace sft::server
