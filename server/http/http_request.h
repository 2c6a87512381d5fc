#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sft::server {

// An HTTP response.
struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> fields;  // more of the head
};

// The bytes to send for it; the connection is closed after them.
std::string ToBytes(const HttpResponse& response);
// The head of an answer whose body comes in chunks (RFC 9112, 7.1).
std::string ChunkedHead(const HttpResponse& response);
// The head of one whose body ends with the connection.
std::string EndlessHead(const HttpResponse& response);

// The head of a request, parsed.
struct HttpRequest {
  std::string method;
  std::string path;     // without the query
  std::string version;  // "HTTP/1.1"
  // The fields, their names in lower case.
  std::vector<std::pair<std::string, std::string>> fields;
  // The first value of a field; empty: it is not there.
  std::string_view Field(std::string_view name) const;
  // The response to a request that is not served: malformed, or with a Host that does not name this
  // machine. A page of another site whose name was pointed at a loopback address (DNS
  // rebinding) reaches this server from a browser on it, and its Host reveals it.
  std::optional<HttpResponse> refused;
};

// `head` goes up to the empty line. `host` is the name or address that the server was told to
// listen at; names and addresses of loopback are accepted too.
HttpRequest ParseRequest(std::string_view head, std::string_view host);

}  // namespace sft::server
