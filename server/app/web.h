#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/rpc/endpoint.h"
#include "server/app/credentials.h"
#include "server/http/web_front.h"

namespace sft::server {

// How a server is to be reached over HTTP, as its options say.
struct WebSettings {
  bool web = false;  // the web page, the REST API and sessions
  std::string folder;
  std::string certificate, key;    // files of the site's own; empty: the server's
  std::vector<std::string> names;  // other names by which browsers reach it: of a proxy
};

// Checks them and reads the certificate. `open`: everybody who reaches the server may do
// everything. PERMISSION_DENIED for an address or a name that others reach of a server that is
// open; INVALID_ARGUMENT for files that are no certificate and key.
absl::StatusOr<WebFront::Options> PlanWeb(const WebSettings& settings,
                                          const rpc::Endpoint& endpoint, bool open,
                                          const std::optional<Credentials>& credentials);

// The page's address; `port` is the one that it has.
std::string WebUrl(const WebFront::Options& plan, const WebSettings& settings,
                   const rpc::Endpoint& endpoint, int port);

}  // namespace sft::server
