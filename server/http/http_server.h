#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "common/io/file.h"
#include "common/rpc/endpoint.h"

namespace sft::server {

// One answer.
struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// Answers GET requests for a few small pages, one connection at a time, on a thread of its own. The
// distribution has cpp-httplib and prometheus-cpp as shared libraries only, and they bring a second
// OpenSSL into a process that links one statically; two pages do not need them. No TLS, no token.
class HttpServer {
 public:
  // Largest request head; more is answered with 431.
  static constexpr size_t kMaxHead = 8192;
  // A client that is slower than this is cut off, so that it cannot keep others waiting.
  static constexpr int kClientTimeoutMs = 2000;

  // Called on the server's thread with the path of the request, without its query.
  using Handler = std::function<HttpResponse(const std::string& path)>;

  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const rpc::Endpoint& endpoint,
                                                           Handler handler);
  ~HttpServer();
  int port() const { return port_; }

 private:
  HttpServer(io::UniqueFd listener, io::UniqueFd stop_read, io::UniqueFd stop_write, int port,
             Handler handler);
  void Loop();
  void Serve(const io::UniqueFd& client) const;

  const io::UniqueFd listener_;
  const io::UniqueFd stop_read_, stop_write_;  // a pipe: closing its end stops the loop
  const int port_;
  const Handler handler_;
  std::thread thread_;
};

}  // namespace sft::server
