#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/rpc/endpoint.h"
#include "common/tls/certificate.h"
#include "server/http/assets.h"
#include "server/http/http_server.h"
#include "server/http/login_endpoint.h"
#include "server/http/openai_endpoint.h"
#include "server/http/page_makers.h"
#include "server/http/rest_api.h"
#include "server/http/session_endpoint.h"
#include "server/http/web_checks.h"

namespace sft::server {

// All that the server serves over HTTP: the pages /healthz and /metrics, the OpenAI-compatible
// endpoint and, where the web page is on, that page, the REST API it uses and sessions.
class WebFront final : private HttpHandler {
 public:
  // All borrowed, and outlive it.
  struct Served {
    Door& door;
    const Methods& methods;
    ChangeHub& hub;
    WebSessions& sessions;
    Clock& clock;
  };
  struct Options {
    std::vector<HttpPage> pages;
    HttpTimes* times = nullptr;  // counts answers; borrowed, and outlives the front
    // The web page and what it needs.
    bool web = false;
    std::string web_folder;  // its files, in place of those in the program
    // Names and addresses by which the server is reached, beside loopback.
    std::vector<std::string> hosts;
    std::optional<tls::Identity> tls;
    bool site_certificate = false;  // the site's, which browsers know: no plain HTTP any more
    // Others than those on this machine reach the server: /metrics asks for an admin then, and for
    // one in any case where it is asked by another name than loopback's, as by a proxy.
    bool closed_metrics = false;
  };

  static absl::StatusOr<std::unique_ptr<WebFront>> Start(const rpc::Endpoint& endpoint,
                                                         const Served& served, Options options);
  // Ends the calls under way.
  ~WebFront() override;
  int port() const { return server_->port(); }

 private:
  WebFront(const Served& served, Options options);
  void Handle(std::shared_ptr<HttpStream> stream) override;
  void HandleWeb(std::shared_ptr<HttpStream> stream);
  WebCaller CallerOf(const HttpStream& stream) const;
  // Whether a request may have the figures, which are of all projects.
  absl::Status AdmitToMetrics(const HttpStream& stream);

  const Served served_;
  const bool web_, closed_metrics_;
  const WebChecks checks_;
  const Assets assets_;
  PageMakers pages_;
  OpenAiEndpoint openai_;
  std::unique_ptr<RestApi> rest_;  // null where the page is off
  SessionEndpoint session_;
  std::unique_ptr<LoginEndpoint> login_;  // as rest_
  std::unique_ptr<tls::ServerContext> tls_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace sft::server
