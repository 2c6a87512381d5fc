#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sft::server {

// An HTTP response.
struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// The bytes to send for it; the connection is closed after them.
std::string ToBytes(const HttpResponse& response);

// The head of a request, parsed.
struct HttpRequest {
  std::string path;  // without the query
  // The response to a request that is not served: malformed, not GET, or with a Host that does not
  // name this machine. A page of another site whose name was pointed at a loopback address (DNS
  // rebinding) reaches this server from a browser on it, and its Host reveals it.
  std::optional<HttpResponse> refused;
};

// `head` goes up to the empty line. `host` is the name or address that the server was told to
// listen at; names and addresses of loopback are accepted too.
HttpRequest ParseRequest(std::string_view head, std::string_view host);

}  // namespace sft::server
