#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "server/oidc/issuer.h"
#include "server/oidc/oidc_config.h"
#include "server/state/access.h"
#include "sft/v1/auth_service.pb.h"

namespace sft::server {

// Somebody for whom the provider vouches now.
struct Person {
  UserRecord user;            // with the roles of its groups; none: nobody here
  std::string refresh_token;  // by which the provider is asked again; empty: it cannot be
};

// Logins of people through the company's provider: the code flow with PKCE (RFC 7636) and the
// device flow (RFC 8628). Keeps nothing of a login that has begun. Errors of all calls: UNAVAILABLE
// where the provider cannot be reached, FAILED_PRECONDITION where the operator has to set something
// right, UNAUTHENTICATED where the provider says no. Thread-safe.
class CompanyLogin {
 public:
  // What came of a question for a person.
  struct Finished {
    std::optional<Person> person;  // nullopt: a device's code was not typed yet
    int slow_down_s = 0;           // the next question has to wait so much longer
  };

  CompanyLogin(OidcConfig::Provider provider, std::vector<OidcConfig::GroupRole> roles,
               std::shared_ptr<Issuer> issuer)
      : provider_(std::move(provider)), roles_(std::move(roles)), issuer_(std::move(issuer)) {}

  const OidcConfig::Provider& provider() const { return provider_; }
  // As AuthService.StartLogin.
  absl::StatusOr<v1::StartLoginResponse> Start(const v1::StartLoginRequest& request) const;
  // PERMISSION_DENIED for a person without a role.
  absl::StatusOr<Finished> Finish(const v1::FinishLoginRequest& request) const;
  // The same person once more, maybe with other roles or none. The provider may have given another
  // refresh token, which is then the only good one.
  absl::StatusOr<Person> Refresh(const std::string& refresh_token,
                                 const std::string& subject) const;

 private:
  absl::StatusOr<v1::StartLoginResponse> StartDevice() const;
  // A question to one of the provider's endpoints, with what proves that this server asks.
  absl::StatusOr<JsonAnswer> Ask(const std::string& url, Issuer::Form form) const;
  absl::StatusOr<JsonAnswer> AskForTokens(Issuer::Form form) const;
  // Whose tokens these are. `subject`: of whom they have to be; empty: of anybody.
  absl::StatusOr<Person> PersonOf(const JsonAnswer& answer, const std::string& nonce,
                                  const std::string& subject) const;
  // Claims that the ID token has not. An answer for another subject is refused.
  absl::Status AddUserinfo(const std::string& access_token, const std::string& subject,
                           nlohmann::json& claims) const;
  void AddRoles(const nlohmann::json& groups, UserRecord& user) const;

  const OidcConfig::Provider provider_;
  const std::vector<OidcConfig::GroupRole> roles_;
  const std::shared_ptr<Issuer> issuer_;
};

}  // namespace sft::server
