#include "server/services/login_service.h"

#include <fmt/format.h>

#include "server/services/auth_service.h"

namespace sft::server {
namespace {

// UNAVAILABLE would be this server.
absl::Status OfIssuer(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return status;
  return DeadlineExceeded(
      fmt::format("who vouches cannot be reached from the server: {}; try again "
                  "later",
                  Message(status)));
}

}  // namespace

void LoginService::AddTo(Methods& methods) {
  const auto anybody = [](std::string method, Audit audit) {
    return Rule{std::move(method), Caller::kAnybody, Role::kNone, Place::kServer, audit};
  };
  using Self = LoginService;
  methods.Unary(anybody("AuthService.GetLoginOptions", Audit::kNone), this, &Self::GetLoginOptions);
  methods.Unary(anybody("AuthService.StartLogin", Audit::kNone), this, &Self::StartLogin);
  methods.Unary(anybody("AuthService.FinishLogin", Audit::kChange), this, &Self::FinishLogin);
  methods.Unary(anybody("AuthService.ExchangeToken", Audit::kChange), this, &Self::ExchangeToken);
}

absl::StatusOr<const CompanyLogin*> LoginService::People() const {
  if (oidc_ != nullptr && oidc_->people() != nullptr) return oidc_->people();
  return FailedPrecondition(
      "this server has no company login: log in with a token, or its operator gives it a "
      "[provider] "
      "with --oidc (docs/security.md)");
}

absl::StatusOr<v1::LoginOptions> LoginService::GetLoginOptions(CallContext&,
                                                               const v1::GetLoginOptionsRequest&) {
  v1::LoginOptions response;
  const auto people = People();
  if (!people.ok()) return response;
  response.set_company(true);
  response.set_issuer((*people)->provider().issuer);
  return response;
}

absl::StatusOr<v1::StartLoginResponse> LoginService::StartLogin(
    CallContext&, const v1::StartLoginRequest& request) {
  SFT_ASSIGN_OR_RETURN(const CompanyLogin* const people, People());
  auto started = people->Start(request);
  if (!started.ok()) return OfIssuer(started.status());
  return started;
}

absl::StatusOr<v1::CreateTokenResponse> LoginService::LogIn(CallContext& call,
                                                            const Access::Vouched& vouched) {
  SFT_ASSIGN_OR_RETURN(const std::string name, access_.NameOf(vouched.user));
  call.SpeaksFor(name);
  TokenRecord token;
  v1::CreateTokenResponse response;
  SFT_ASSIGN_OR_RETURN(*response.mutable_secret(), access_.LogIn(vouched, token, call.actor()));
  *response.mutable_token() = ToProto(token);
  return response;
}

absl::StatusOr<v1::FinishLoginResponse> LoginService::FinishLogin(
    CallContext& call, const v1::FinishLoginRequest& request) {
  SFT_ASSIGN_OR_RETURN(const CompanyLogin* const people, People());
  const absl::StatusOr<CompanyLogin::Finished> finished = people->Finish(request);
  if (!finished.ok()) return OfIssuer(finished.status());
  v1::FinishLoginResponse response;
  if (!finished->person.has_value()) {
    call.NothingChanged();
    response.set_pending(true);
    response.set_slow_down_seconds(finished->slow_down_s);
    return response;
  }
  Access::Vouched vouched;
  vouched.user = finished->person->user;
  vouched.life_us = std::chrono::microseconds(people->provider().session).count();
  vouched.comment = "company login";
  SFT_ASSIGN_OR_RETURN(*response.mutable_login(), LogIn(call, vouched));
  oidc_->renewal()->Keep(response.login().token().id(), finished->person->refresh_token);
  return response;
}

absl::StatusOr<v1::CreateTokenResponse> LoginService::ExchangeToken(
    CallContext& call, const v1::ExchangeTokenRequest& request) {
  if (oidc_ == nullptr || oidc_->ci() == nullptr) {
    return FailedPrecondition(
        "this server takes no tokens of a CI: its operator gives it rules, [[ci]], with --oidc "
        "(docs/security.md)");
  }
  const absl::StatusOr<Access::Vouched> vouched = oidc_->ci()->Exchange(request.subject_token());
  if (!vouched.ok()) return OfIssuer(vouched.status());
  return LogIn(call, *vouched);
}

}  // namespace sft::server
