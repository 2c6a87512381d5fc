#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
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
  // Questions to issuers at once for who has no token yet: of all, and of one address other than
  // loopback, where a proxy may be.
  static constexpr int kMostAtOnce = 16, kMostOfOne = 4;

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

  // A place among the questions, kept while what it returns lives. RESOURCE_EXHAUSTED where there
  // are too many. `peer`: "ipv4:10.0.0.3:4711".
  absl::StatusOr<std::shared_ptr<void>> Enter(const std::string& peer) SFT_EXCLUDES(mutex_);

 private:
  Oidc() = default;

  std::unique_ptr<CompanyLogin> people_;
  std::unique_ptr<LoginRenewal> renewal_;
  std::unique_ptr<CiExchange> ci_;
  Mutex mutex_;
  std::map<std::string, int> at_once_of_ SFT_GUARDED_BY(mutex_);  // none at 0
  int at_once_ SFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace sft::server
