#include "server/http/web_checks.h"

#include "common/rpc/endpoint.h"
#include "server/http/rest_json.h"

namespace sft::server {
namespace {

// Styles and scripts of our own alone, no frames, nothing from another host, and no text that
// becomes code.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'";

}  // namespace

WebChecks::WebChecks(const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts) {
    // An address of IPv6 comes without brackets.
    const bool address = host.find(':') != host.rfind(':');
    hosts_.insert(HostOnly(address ? "[" + host + "]" : host));
  }
  hosts_.erase("");
}

std::optional<HttpResponse> WebChecks::Refuse(const HttpRequest& request) const {
  const std::string_view host = request.Field("host");
  // HTTP/1.0 has no Host; a browser always sends one.
  if (!host.empty() || !request.is_1_0) {
    const std::string asked = HostOnly(host);
    if (!rpc::IsLoopback(asked) && !hosts_.contains(asked)) {
      return HttpResponse{
          421,
          HttpResponse().content_type,
          "this server does not answer to that name: use one of its certificate, or "
          "name it with --http-name; on its own machine, http://127.0.0.1\n",
          {}};
    }
  }
  const std::string_view origin = request.Field("origin");
  if (origin.empty() || origin == "http://" + std::string(host) ||
      origin == "https://" + std::string(host)) {
    return std::nullopt;
  }
  return RestError(PermissionDenied("pages of other sites may not use this server"));
}

std::optional<HttpResponse> WebChecks::RefuseForeign(const HttpRequest& request) {
  const std::string_view site = request.Field("sec-fetch-site");
  // "none": typed into the browser, which sends no more than a GET.
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (site.empty() || site == "same-origin" || (reads && site == "none")) return std::nullopt;
  return RestError(PermissionDenied("pages of other sites may not use this server"));
}

std::vector<std::pair<std::string, std::string>> SecurityFields(bool has_site_certificate) {
  std::vector<std::pair<std::string, std::string>> fields = {
      {"Content-Security-Policy", kPolicy},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Opener-Policy", "same-origin"}};
  if (has_site_certificate) fields.emplace_back("Strict-Transport-Security", "max-age=31536000");
  return fields;
}

}  // namespace sft::server
