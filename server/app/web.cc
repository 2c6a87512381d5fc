#include "server/app/web.h"

#include <fmt/format.h>

#include "common/io/file.h"
#include "common/tls/server_session.h"

namespace sft::server {
namespace {

constexpr int64_t kMostBytes = 1 << 20;

absl::StatusOr<std::string> ReadPem(std::string_view option, const std::string& path) {
  auto pem = io::ReadFile(path, kMostBytes);
  if (!pem.ok()) return Annotate(pem.status(), option);
  return pem;
}

absl::StatusOr<tls::Identity> ReadIdentity(const WebSettings& settings) {
  if (settings.certificate.empty() || settings.key.empty()) {
    return InvalidArgument("--http-tls-cert and --http-tls-key go together");
  }
  tls::Identity identity;
  SFT_ASSIGN_OR_RETURN(identity.certificate_pem, ReadPem("--http-tls-cert", settings.certificate));
  SFT_ASSIGN_OR_RETURN(identity.key_pem, ReadPem("--http-tls-key", settings.key));
  const std::string certificate = "--http-tls-cert " + settings.certificate;
  SFT_RETURN_IF_ERROR(
      Annotate(tls::ReadCertificate(identity.certificate_pem).status(), certificate));
  SFT_RETURN_IF_ERROR(Annotate(tls::ServerContext::Make(identity, "http/1.1").status(),
                               certificate + " with --http-tls-key " + settings.key));
  return identity;
}

bool IsWildcard(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

}  // namespace

absl::StatusOr<WebFront::Options> PlanWeb(const WebSettings& settings,
                                          const rpc::Endpoint& endpoint, bool open,
                                          const std::optional<Credentials>& credentials) {
  WebFront::Options plan;
  plan.web = settings.web;
  plan.web_folder = settings.folder;
  plan.hosts = settings.names;
  if (!IsWildcard(endpoint.host)) plan.hosts.push_back(endpoint.host);
  const bool loopback = rpc::IsLoopback(endpoint.host);
  if (!loopback && open) {
    return PermissionDenied(fmt::format(
        "--http {}: this server asks nobody for a token, so only loopback is served; run "
        "`sft-server init` and start it with --require-token, or with another --listen",
        endpoint.ToString()));
  }
  if (!settings.certificate.empty() || !settings.key.empty()) {
    SFT_ASSIGN_OR_RETURN(plan.tls, ReadIdentity(settings));
    plan.site_certificate = true;
  } else if (!loopback) {
    plan.tls = credentials->server;
  }
  if (plan.tls.has_value()) {
    SFT_ASSIGN_OR_RETURN(const tls::Certificate certificate,
                         tls::ReadCertificate(plan.tls->certificate_pem));
    plan.hosts.insert(plan.hosts.end(), certificate.names.begin(), certificate.names.end());
  }
  for (const std::string& host : plan.hosts) {
    if (!open || rpc::IsLoopback(host)) continue;
    return PermissionDenied(
        fmt::format("this server asks nobody for a token, so it may not be reached as {}, by "
                    "--http-name or --http-tls-cert; run `sft-server init` and start it with "
                    "--require-token, or leave the name out",
                    host));
  }
  plan.closed_metrics = !loopback;
  return plan;
}

std::string WebUrl(const WebFront::Options& plan, const WebSettings& settings,
                   const rpc::Endpoint& endpoint, int port) {
  rpc::Endpoint shown{endpoint.host, port};
  if (IsWildcard(shown.host) && !plan.hosts.empty()) shown.host = plan.hosts.front();
  // A server on loopback with another name stands behind a proxy, which has the usual port.
  if (!settings.names.empty() && rpc::IsLoopback(endpoint.host)) {
    return "https://" + settings.names.front();
  }
  return (plan.tls.has_value() ? "https://" : "http://") + shown.ToString();
}

}  // namespace sft::server
