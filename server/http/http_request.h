#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sft::server {

// An HTTP response.
struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";  // empty: there is no body
  std::string body;
  std::vector<std::pair<std::string, std::string>> fields;  // more of the head
};

// How the end of a response's body is told.
struct HttpFraming {
  std::optional<size_t> length = std::nullopt;  // by its length
  bool chunked = false;          // or in chunks (RFC 9112, 7.1); else by the connection's end
  bool closes = false;           // the connection ends with it
  std::string_view fields = "";  // more of the head, each with its line's end
};
std::string HeadOf(const HttpResponse& response, const HttpFraming& framing);

// The head of a request that is well-formed.
struct HttpRequest {
  std::string method;
  std::string path;                // as it was sent, without the query; begins with "/"
  std::string query;               // as it was sent, without the "?"
  bool is_1_0 = false;             // HTTP/1.0, else 1.1
  bool keeps = false;              // the connection is to serve another request after this one
  bool chunked = false;            // the body comes in chunks,
  std::optional<uint64_t> length;  // or has this length; neither: there is none
  // The fields, their names in lower case.
  std::vector<std::pair<std::string, std::string>> fields;
  // The first value of a field; empty: it is not there.
  std::string_view Field(std::string_view name) const;
};

// A text in lower case, as names of fields are compared; and one without the blanks around it.
std::string LowerCase(std::string_view text);
std::string_view Trimmed(std::string_view text);

// "host:port" or "[::1]:port" without the port and the brackets, in lower case; empty for what is
// neither.
std::string HostOnly(std::string_view value);

}  // namespace sft::server
