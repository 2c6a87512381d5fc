#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/http/http_request.h"

namespace sft::server {

// Whether a request may be a browser's that another site sends here. A page of another site whose
// name was pointed at this address (DNS rebinding) shows its Host; one that posts here from its own
// address shows its Origin and Sec-Fetch-Site. Thread-safe.
class WebChecks {
 public:
  // By which names and addresses the server is reached, beside those of loopback.
  explicit WebChecks(const std::vector<std::string>& hosts);

  // The answer to a request that is refused: 421 for a Host that is not ours, 403 for an Origin
  // that is not.
  std::optional<HttpResponse> Refuse(const HttpRequest& request) const;
  // And to one for data that another site's page has sent.
  static std::optional<HttpResponse> RefuseForeign(const HttpRequest& request);

 private:
  std::set<std::string> hosts_;
};

// Fields of the head of each answer: what a browser may do with it.
std::vector<std::pair<std::string, std::string>> SecurityFields(bool has_site_certificate);

}  // namespace sft::server
