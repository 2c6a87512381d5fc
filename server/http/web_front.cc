#include "server/http/web_front.h"

#include <utility>

#include "server/http/rest_json.h"

namespace sft::server {
namespace {

constexpr std::string_view kMetrics = "/metrics", kApi = "/api";

bool IsBelow(std::string_view path, std::string_view root) {
  return path.starts_with(root) &&
         (path.size() == root.size() || root.ends_with('/') || path[root.size()] == '/');
}

}  // namespace

absl::StatusOr<std::unique_ptr<WebFront>> WebFront::Start(const rpc::Endpoint& endpoint,
                                                          const Served& served, Options options) {
  HttpServer::Options of_server;
  of_server.fields = SecurityFields(options.site_certificate);
  std::unique_ptr<tls::ServerContext> tls;
  if (options.tls.has_value()) {
    SFT_ASSIGN_OR_RETURN(tls, tls::ServerContext::Make(*options.tls, "http/1.1"));
  }
  of_server.tls = tls.get();
  of_server.times = options.times;
  std::unique_ptr<WebFront> front(new WebFront(served, std::move(options)));
  front->tls_ = std::move(tls);
  SFT_ASSIGN_OR_RETURN(front->server_,
                       HttpServer::Start(endpoint, static_cast<HttpHandler&>(*front), of_server));
  return front;
}

WebFront::WebFront(const Served& served, Options options)
    : served_(served),
      web_(options.web),
      closed_metrics_(options.closed_metrics),
      checks_(options.hosts),
      assets_(std::move(options.web_folder)),
      pages_(std::move(options.pages)),
      openai_(served.door, served.methods),
      session_(served.door.gate(), served.sessions, served.hub) {
  if (!web_) return;
  rest_ = std::make_unique<RestApi>(served.door, served.methods, served.hub, served.sessions,
                                    served.clock);
  login_ = std::make_unique<LoginEndpoint>(served.door, served.methods, served.sessions);
}

// First of all, so that all streams are gone.
WebFront::~WebFront() { server_.reset(); }

WebCaller WebFront::CallerOf(const HttpStream& stream) const {
  WebCaller caller;
  caller.origin.peer = stream.peer();
  caller.origin.authorization = stream.request().Field("authorization");
  if (!caller.origin.authorization.empty()) return caller;
  const std::string secret = SessionEndpoint::SecretOf(stream.request());
  if (secret.empty()) return caller;
  caller.origin.session_token = served_.sessions.TokenOf(secret);
  if (!caller.origin.session_token.empty()) caller.session = secret;
  return caller;
}

absl::Status WebFront::AdmitToMetrics(const HttpStream& stream) {
  if (!closed_metrics_ && rpc::IsLoopback(HostOnly(stream.request().Field("host")))) {
    return absl::OkStatus();
  }
  const Rule rule{"metrics"};
  const WebCaller caller = CallerOf(stream);
  CallContext call(served_.door.gate(), rule, caller.origin);
  const absl::Status admitted = served_.door.AdmitCaller(call, /*streams=*/false);
  served_.door.Record(call, admitted);
  return admitted;
}

void WebFront::Handle(std::shared_ptr<HttpStream> stream) {
  const HttpRequest& request = stream->request();
  if (const auto refusal = checks_.Refuse(request)) return stream->Respond(*refusal);
  if (pages_.Has(request.path)) {
    if (request.method != "GET") {
      return stream->Respond(
          {405, HttpResponse().content_type, "only GET is served\n", {{"Allow", "GET"}}});
    }
    if (request.path == kMetrics) {
      const absl::Status admitted = AdmitToMetrics(*stream);
      if (!admitted.ok()) return stream->Respond(RestError(admitted));
    }
    return pages_.Answer(std::move(stream));
  }
  if (OpenAiEndpoint::Takes(request)) {
    if (const auto refusal = WebChecks::RefuseForeign(request)) return stream->Respond(*refusal);
    return openai_.Take(std::move(stream));
  }
  if (web_) return HandleWeb(std::move(stream));
  stream->Respond({404,
                   HttpResponse().content_type,
                   "there are /healthz, /metrics and /v1/models; --http switches the web page on\n",
                   {}});
}

void WebFront::HandleWeb(std::shared_ptr<HttpStream> stream) {
  const HttpRequest& request = stream->request();
  if (LoginEndpoint::Takes(request)) {
    // The provider, another site, sends browsers back here.
    const auto refusal = WebChecks::RefuseForeign(request);
    if (request.path == LoginEndpoint::kToken && refusal) return stream->Respond(*refusal);
    return login_->Handle(std::move(stream));
  }
  const bool api = IsBelow(request.path, kApi), session = request.path == SessionEndpoint::kPath;
  if (!api && !session) return assets_.Answer(*stream);
  if (const auto refusal = WebChecks::RefuseForeign(request)) return stream->Respond(*refusal);
  if (session) return session_.Handle(std::move(stream));
  if (request.path.starts_with(RestApi::kRoot)) {
    WebCaller caller = CallerOf(*stream);
    return rest_->Handle(std::move(stream), std::move(caller));
  }
  stream->Respond(RestError(NotFound("the API is below /api/v1/")));
}

}  // namespace sft::server
