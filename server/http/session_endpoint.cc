#include "server/http/session_endpoint.h"

#include <fmt/format.h>

#include "common/base/json.h"
#include "server/door/call_context.h"
#include "server/http/percent.h"
#include "server/http/rest_json.h"

namespace sft::server {
namespace {

constexpr size_t kMostBytes = 4096;

HttpResponse WithCookie(const std::string& secret, std::string_view more) {
  HttpResponse response{204, "", "", {{"Cache-Control", "no-store"}}};
  if (!secret.empty() || !more.empty()) {
    response.fields.push_back(SessionEndpoint::CookieOf(secret, more));
  }
  return response;
}

// The one member of a JSON object, if that is a text; empty otherwise.
std::string TextIn(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::pair<std::string, std::string> SessionEndpoint::CookieOf(const std::string& secret,
                                                              std::string_view more) {
  return {"Set-Cookie",
          fmt::format("{}={}; Path=/; Secure; HttpOnly; SameSite=Strict{}", kCookie, secret, more)};
}

std::string SessionEndpoint::SecretOf(const HttpRequest& request) {
  return CookieIn(request.Field("cookie"), kCookie).value_or("");
}

void SessionEndpoint::Handle(std::shared_ptr<HttpStream> stream) {
  const HttpRequest& request = stream->request();
  if (request.method == "DELETE") {
    Close(SecretOf(request));
    return stream->Respond(WithCookie("", "; Max-Age=0"));
  }
  if (request.method != "POST") {
    HttpResponse refusal =
        RestError(absl::UnimplementedError("a session is opened with POST, ended with DELETE"));
    refusal.status = 405;
    refusal.fields.emplace_back("Allow", "POST, DELETE");
    return stream->Respond(refusal);
  }
  // A page of another site can make a browser send a form or plain text here, but no JSON.
  if (!request.Field("content-type").starts_with("application/json")) {
    HttpResponse refusal = RestError(InvalidArgument("the Content-Type is not application/json"));
    refusal.status = 415;
    return stream->Respond(refusal);
  }
  HttpStream& asked = *stream;
  asked.ReadBody(kMostBytes, [this, stream = std::move(stream)](absl::StatusOr<std::string> body) {
    stream->Respond(body.ok() ? Open(*body, stream->peer()) : RestError(body.status()));
  });
}

void SessionEndpoint::Close(const std::string& secret) {
  CallOrigin origin;
  origin.session_token = sessions_.TokenOf(secret);
  const absl::StatusOr<Principal> user = gate_.Authenticate(origin);
  if (sessions_.Close(secret) && user.ok()) hub_.Bump(ChangeHub::UserKey(user->name));
}

HttpResponse SessionEndpoint::Open(const std::string& body, const std::string& peer) {
  // Everybody on the machine is the local user.
  if (gate_.open()) return WithCookie("", "");
  const nlohmann::json given = ParseJson(body);
  const std::string code = given.is_object() ? TextIn(given, "code") : "";
  const std::string token = given.is_object() ? TextIn(given, "token") : "";
  if (code.empty() == token.empty()) {
    return RestError(InvalidArgument(R"(the body is {"token": "..."} or {"code": "..."})"));
  }
  CallOrigin origin;
  origin.peer = peer;
  if (!token.empty()) origin.authorization = "Bearer " + token;
  if (!code.empty()) origin.session_token = sessions_.TakeCode(code).value_or("");
  absl::StatusOr<Principal> caller = gate_.Authenticate(origin);
  if (!code.empty() && origin.session_token.empty()) {
    caller = absl::UnauthenticatedError(
        "this code was used already, or is older than a minute: `sftctl web` makes another");
  }
  if (caller.ok() && caller->kind != Principal::Kind::kUser) {
    caller = absl::UnauthenticatedError("this is the token of a node: log in with a user's");
  }
  if (!caller.ok()) {
    gate_.failed().Count({.principal = CallContext::kNobody,
                          .peer = peer,
                          .method = "session",
                          .outcome = static_cast<int>(caller.status().code())});
    return RestError(caller.status());
  }
  return WithCookie(sessions_.Open(caller->token), "");
}

}  // namespace sft::server
