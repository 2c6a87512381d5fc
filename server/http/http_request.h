#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sft::server {

// One answer.
struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// The bytes that are sent for it; the connection ends after them.
std::string ToBytes(const HttpResponse& response);

// What a request's head asks for.
struct HttpRequest {
  std::string path;  // without its query
  // The answer to what is not served at all: no request, not GET, or a Host that is not of this
  // machine. A page of another site whose name was pointed at a loopback address (DNS rebinding)
  // reaches this server from a browser on it, and its Host gives it away.
  std::optional<HttpResponse> refused;
};

// `head` goes up to the empty line. `host` is the name or address that the server was told to
// listen at; names and addresses of loopback are taken beside it.
HttpRequest ParseRequest(std::string_view head, std::string_view host);

}  // namespace sft::server
