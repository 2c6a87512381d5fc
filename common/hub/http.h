#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace sft::hub {

// The bytes of something to be sent, read once in their order.
class HttpSource {
 public:
  virtual ~HttpSource() = default;
  // The number of bytes written to `data`; 0 at the end.
  virtual absl::StatusOr<size_t> Read(char* data, size_t size) = 0;
};

// One request.
struct HttpRequest {
  std::string method = "GET";
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body = {};  // what is sent, unless it is empty
  // In place of it: `source_bytes` bytes of `source`, which is borrowed. Null: none.
  HttpSource* source = nullptr;
  int64_t source_bytes = 0;
};

// The body of an answer, read once.
class HttpBody {
 public:
  virtual ~HttpBody() = default;
  // The number of bytes written to `data`; 0 at the end. UNAVAILABLE when the connection breaks or
  // stands still for too long.
  virtual absl::StatusOr<size_t> Read(char* data, size_t size) = 0;
};

// The answer to one request, whatever its status.
struct HttpResponse {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::unique_ptr<HttpBody> body;

  // The first header of that lower-case name; empty when there is none.
  std::string_view Header(std::string_view name) const;
};

// Sends requests. Follows no redirects and tries nothing again: Hub does. Thread-safe.
class HttpClient {
 public:
  virtual ~HttpClient() = default;
  // UNAVAILABLE when there was no answer; FAILED_PRECONDITION when there will never be one: an
  // address that is none, a certificate that is not trusted; what the request's source says when it
  // cannot be read.
  virtual absl::StatusOr<HttpResponse> Send(const HttpRequest& request) = 0;
};

// Addresses and limits of connections.
struct HttpOptions {
  // PEM file with the authorities to trust; empty: the system's, or those that come with the
  // client.
  std::string ca_file;
  // Proxies for each scheme, and the hosts that are reached without ("host, .domain, *").
  std::string https_proxy, http_proxy, no_proxy;
  Nanos connect_timeout = std::chrono::seconds(10);
  // The longest time without a byte.
  Nanos stall_timeout = std::chrono::seconds(20);
  // The longest time for a whole exchange, its body included; 0: any.
  Nanos total_timeout{0};
  // "192.0.2.1:443", "[2001:db8::1]:443": connections go there whatever the URL's name leads to;
  // its certificate has to be the name's all the same. Empty: the name is looked up.
  std::string address = {};
};

// From SSL_CERT_FILE, HTTPS_PROXY, HTTP_PROXY and NO_PROXY (or their lower-case names). `ca_file`
// comes first if it is given.
HttpOptions HttpOptionsOf(const std::string& ca_file,
                          const std::function<std::string(const std::string&)>& environment);

// The proxy for a URL; empty: none.
std::string ProxyFor(const HttpOptions& options, std::string_view url);

// A client with TLS. FAILED_PRECONDITION when its certificates cannot be read.
absl::StatusOr<std::unique_ptr<HttpClient>> MakeHttpClient(const HttpOptions& options);

// "https://host:port" of a URL, in lower case; empty when it is none of http or https. Empty also
// for a URL that programs read differently, so that it cannot be said whose it is: with a user, a
// backslash (for some it ends the host), a space or a control character.
std::string OriginOf(std::string_view url);
// Where a Location header leads from `url`.
std::string Follow(std::string_view url, std::string_view location);

}  // namespace sft::hub
