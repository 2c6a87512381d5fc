#include "server/oidc/oidc.h"

#include <map>

namespace sft::server {
namespace {

// The issuers of a configuration, each once.
class Issuers {
 public:
  Issuers(hub::HttpOptions http, Clock& clock) : http_(std::move(http)), clock_(clock) {
    http_.total_timeout = Issuer::kTimeout;
  }
  absl::StatusOr<std::shared_ptr<Issuer>> Get(const std::string& url, const std::string& ca_file) {
    std::shared_ptr<Issuer>& issuer = issuers_[{url, ca_file}];
    if (issuer != nullptr) return issuer;
    std::shared_ptr<hub::HttpClient>& client = clients_[ca_file];
    if (client == nullptr) {
      hub::HttpOptions options = http_;
      if (!ca_file.empty()) options.ca_file = ca_file;
      SFT_ASSIGN_OR_RETURN(client, hub::MakeHttpClient(options));
    }
    issuer = std::make_shared<Issuer>(url, client, clock_);
    return issuer;
  }

 private:
  hub::HttpOptions http_;
  Clock& clock_;
  std::map<std::string, std::shared_ptr<hub::HttpClient>> clients_;  // by their authorities
  std::map<std::pair<std::string, std::string>, std::shared_ptr<Issuer>> issuers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Oidc>> Oidc::Make(const OidcConfig& config,
                                                 const hub::HttpOptions& http, Access& access,
                                                 Clock& clock, const std::string& folder) {
  std::unique_ptr<Oidc> oidc(new Oidc());
  Issuers issuers(http, clock);
  if (config.provider.has_value()) {
    SFT_ASSIGN_OR_RETURN(std::shared_ptr<Issuer> issuer,
                         issuers.Get(config.provider->issuer, config.provider->ca_file));
    oidc->people_ =
        std::make_unique<CompanyLogin>(*config.provider, config.roles, std::move(issuer));
    oidc->renewal_ = std::make_unique<LoginRenewal>(*oidc->people_, access, clock, folder);
  }
  std::vector<CiExchange::Rule> rules;
  for (const OidcConfig::CiRule& rule : config.ci) {
    SFT_ASSIGN_OR_RETURN(std::shared_ptr<Issuer> issuer, issuers.Get(rule.issuer, rule.ca_file));
    rules.push_back({rule, std::move(issuer)});
  }
  if (!rules.empty()) oidc->ci_ = std::make_unique<CiExchange>(std::move(rules));
  return oidc;
}

}  // namespace sft::server
