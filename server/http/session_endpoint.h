#pragma once

#include <memory>
#include <string>

#include "server/core/change_hub.h"
#include "server/door/gate.h"
#include "server/door/web_sessions.h"
#include "server/http/http_stream.h"

namespace sft::server {

// POST /session with a token or a code opens a session, whose secret a cookie has; DELETE /session
// ends it. Thread-safe.
class SessionEndpoint {
 public:
  static constexpr std::string_view kPath = "/session";
  static constexpr std::string_view kCookie = "__Host-sft";

  // All borrowed.
  SessionEndpoint(Gate& gate, WebSessions& sessions, ChangeHub& hub)
      : gate_(gate), sessions_(sessions), hub_(hub) {}

  // In the HTTP server's thread.
  void Handle(std::shared_ptr<HttpStream> stream);
  // The secret of a request's session; empty: it has none.
  static std::string SecretOf(const HttpRequest& request);
  // The field that gives a browser its session. `more`: attributes, each behind "; ".
  static std::pair<std::string, std::string> CookieOf(const std::string& secret,
                                                      std::string_view more = "");

 private:
  HttpResponse Open(const std::string& body, const std::string& peer);
  // Its streams end.
  void Close(const std::string& secret);

  Gate& gate_;
  WebSessions& sessions_;
  ChangeHub& hub_;
};

}  // namespace sft::server
