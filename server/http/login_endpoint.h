#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "server/door/hands.h"
#include "server/door/methods.h"
#include "server/door/web_sessions.h"
#include "server/http/http_stream.h"
#include "sft/v1/auth_service.pb.h"

namespace sft::server {

// Company login over HTTP. GET kStart sends a browser to the provider, which sends it back to
// kCallback with a code; that opens a session. What belongs to the login that has begun is in a
// cookie of the browser, and nowhere else. POST kToken exchanges the ID token of a CI job (RFC
// 8693). All of it by calls of AuthService through the door, in threads of its own. Thread-safe.
class LoginEndpoint {
 public:
  static constexpr std::string_view kStart = "/login/company", kCallback = "/login/callback",
                                    kToken = "/oauth/token";
  // Of a login that has begun; sent when another site leads back here, as a session's is not.
  static constexpr std::string_view kCookie = "__Host-sft-login";
  static constexpr int kThreads = 4, kMostWaiting = 64;
  static constexpr size_t kMostBytes = 32 << 10;

  // All borrowed.
  LoginEndpoint(Door& door, const Methods& methods, WebSessions& sessions)
      : door_(door), methods_(methods), sessions_(sessions), hands_(kThreads, "login") {}

  static bool Takes(const HttpRequest& request);
  // In the HTTP server's thread.
  void Handle(std::shared_ptr<HttpStream> stream);

 private:
  HttpResponse Start(const HttpStream& stream);
  HttpResponse Finish(const HttpStream& stream);
  HttpResponse Exchange(const HttpStream& stream, const std::string& body);
  // A call of a method of AuthService.
  template <typename Answer>
  absl::StatusOr<Answer> Call(const char* method, const google::protobuf::Message& request,
                              const std::string& peer);
  void Give(std::shared_ptr<HttpStream> stream, std::function<HttpResponse(HttpStream&)> work);

  Door& door_;
  const Methods& methods_;
  WebSessions& sessions_;
  std::atomic<int> waiting_ = 0;
  Hands hands_;
};

}  // namespace sft::server
