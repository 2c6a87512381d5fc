#pragma once

#include "server/core/access.h"
#include "server/door/methods.h"
#include "server/oidc/oidc.h"
#include "sft/v1/auth_service.pb.h"

namespace sft::server {

// The calls of AuthService that need no token, because they give one: logins through the company's
// provider, and exchanges of a CI's ID tokens.
class LoginService final {
 public:
  // `oidc`: null where the server has neither. Both are borrowed.
  LoginService(Oidc* oidc, Access& access) : oidc_(oidc), access_(access) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::StatusOr<v1::LoginOptions> GetLoginOptions(CallContext& call,
                                                   const v1::GetLoginOptionsRequest& request);
  absl::StatusOr<v1::StartLoginResponse> StartLogin(CallContext& call,
                                                    const v1::StartLoginRequest& request);
  absl::StatusOr<v1::FinishLoginResponse> FinishLogin(CallContext& call,
                                                      const v1::FinishLoginRequest& request);
  absl::StatusOr<v1::CreateTokenResponse> ExchangeToken(CallContext& call,
                                                        const v1::ExchangeTokenRequest& request);

 private:
  // FAILED_PRECONDITION where people do not log in so here.
  absl::StatusOr<const CompanyLogin*> People() const;
  absl::StatusOr<v1::CreateTokenResponse> LogIn(CallContext& call, const Access::Vouched& vouched);

  Oidc* const oidc_;
  Access& access_;
};

}  // namespace sft::server
