#pragma once

#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/hub/http.h"
#include "server/core/access.h"
#include "server/oidc/ci_exchange.h"
#include "server/oidc/company_login.h"
#include "server/oidc/login_renewal.h"
#include "server/oidc/oidc_config.h"

namespace sft::server {

// All that `--oidc` gives a server: logins of people, which are renewed, and tokens of CI jobs.
// Thread-safe.
class Oidc {
 public:
  // `http`: how issuers are asked, but for their authorities and times. Refresh tokens lie in
  // `folder`. The others are borrowed. FAILED_PRECONDITION for authorities that cannot be read.
  static absl::StatusOr<std::unique_ptr<Oidc>> Make(const OidcConfig& config,
                                                    const hub::HttpOptions& http, Access& access,
                                                    Clock& clock, const std::string& folder);

  // Null: people do not log in so.
  const CompanyLogin* people() const { return people_.get(); }
  LoginRenewal* renewal() { return renewal_.get(); }
  // Null: there are no rules for a CI.
  const CiExchange* ci() const { return ci_.get(); }

 private:
  Oidc() = default;

  std::unique_ptr<CompanyLogin> people_;
  std::unique_ptr<LoginRenewal> renewal_;
  std::unique_ptr<CiExchange> ci_;
};

}  // namespace sft::server
