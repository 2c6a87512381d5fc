#include "server/webhooks/webhook_transport.h"

#include <fmt/format.h>

#include <charconv>

namespace sft::server {
namespace {

hub::HttpOptions Direct(hub::HttpOptions http) {
  http.https_proxy.clear();
  http.http_proxy.clear();
  http.total_timeout = HttpWebhookTransport::kTimeout;
  return http;
}

int64_t SecondsOfHeader(std::string_view text) {
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  return error == std::errc() && end == text.data() + text.size() && seconds > 0 ? seconds : 0;
}

}  // namespace

WebhookAnswer HttpAnswer(int status, int64_t retry_after_s) {
  constexpr int kGone = 410;
  WebhookAnswer answer{status, retry_after_s};
  answer.gone = status == kGone;
  if (status / 100 != 2) {
    answer.said = fmt::format("it answered with HTTP status {}{}", status,
                              status / 100 == 3 ? ", which is not followed" : "");
  }
  return answer;
}

HttpWebhookTransport::HttpWebhookTransport(AddressGuard guard, hub::HttpOptions http)
    : guard_(std::move(guard)), http_(Direct(std::move(http))) {}

absl::StatusOr<WebhookAnswer> HttpWebhookTransport::Post(const WebhookPost& post) {
  hub::HttpOptions options = http_;
  SFT_ASSIGN_OR_RETURN(options.address, guard_.Check(post.url));
  // A client of its own: it keeps no connection, and goes to this address alone.
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<hub::HttpClient> client, hub::MakeHttpClient(options));
  hub::HttpRequest request;
  request.method = "POST";
  request.url = post.url;
  request.headers = post.headers;
  request.body = post.body;
  SFT_ASSIGN_OR_RETURN(const hub::HttpResponse response, client->Send(request));
  size_t size = 0;
  char buffer[8192];
  while (true) {
    SFT_ASSIGN_OR_RETURN(const size_t got, response.body->Read(buffer, sizeof(buffer)));
    if (got == 0) break;
    size += got;
    if (size > kMostAnswer) {
      return Unavailable(fmt::format("its answer has more than {} bytes", kMostAnswer));
    }
  }
  return HttpAnswer(response.status, SecondsOfHeader(response.Header("retry-after")));
}

}  // namespace sft::server
