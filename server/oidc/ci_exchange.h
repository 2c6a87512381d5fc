#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/core/access.h"
#include "server/oidc/issuer.h"
#include "server/oidc/oidc_config.h"

namespace sft::server {

// Exchanges ID tokens of CI jobs (RFC 8693): whom the operator's rules name gets a token of kLife
// for one project. Thread-safe.
class CiExchange {
 public:
  static constexpr std::chrono::hours kLife{1};
  struct Rule {
    OidcConfig::CiRule rule;
    std::shared_ptr<Issuer> issuer;
  };

  explicit CiExchange(std::vector<Rule> rules) : rules_(std::move(rules)) {}

  // What the job that shows this token gets, by the first rule that fits. UNAUTHENTICATED where the
  // token is not good or of no issuer of a rule, PERMISSION_DENIED where no rule fits, errors of
  // Issuer::Verify. That the token was used is the caller's to keep (Access::LogIn).
  absl::StatusOr<Access::Vouched> Exchange(const std::string& subject_token) const;

 private:
  const std::vector<Rule> rules_;
};

}  // namespace sft::server
