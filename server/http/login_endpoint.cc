#include "server/http/login_endpoint.h"

#include <absl/strings/escaping.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/base/plain_text.h"
#include "common/io/sha256.h"
#include "server/http/percent.h"
#include "server/http/rest_json.h"
#include "server/http/session_endpoint.h"

namespace sft::server {
namespace {

constexpr int kSecretLength = 52;  // characters of 5 bits each
constexpr int kLoginSeconds = 600;
constexpr char kExchangeGrant[] = "urn:ietf:params:oauth:grant-type:token-exchange";
constexpr char kAccessToken[] = "urn:ietf:params:oauth:token-type:access_token";
constexpr std::string_view kJwtTypes[] = {"urn:ietf:params:oauth:token-type:jwt",
                                          "urn:ietf:params:oauth:token-type:id_token"};

// A call within this process.
class LoginExchange final : public Exchange {
 public:
  LoginExchange(const google::protobuf::Message& request, google::protobuf::Message& answer,
                const std::string& peer)
      : request_(request), answer_(answer) {
    origin_.peer = peer;
  }
  const CallOrigin& origin() const override { return origin_; }
  absl::StatusOr<bool> Read(google::protobuf::Message& message) override {
    message.CopyFrom(request_);
    return true;
  }
  bool Write(const google::protobuf::Message& message) override {
    answer_.CopyFrom(message);
    return true;
  }
  bool Gone() const override { return false; }

 private:
  const google::protobuf::Message& request_;
  google::protobuf::Message& answer_;
  CallOrigin origin_;
};

// What belongs to one login, made of the secret in its cookie.
struct LoginSecrets {
  explicit LoginSecrets(const std::string& secret)
      : state(io::Sha256Hex("state " + secret)),
        nonce(io::Sha256Hex("nonce " + secret)),
        verifier(io::Sha256Hex("verifier " + secret)) {}
  const std::string state, nonce, verifier;
};

std::string ChallengeOf(const std::string& verifier) {
  io::Sha256 hash;
  hash.Update(verifier);
  const io::Sha256::Digest digest = hash.Finish();
  return absl::WebSafeBase64Escape({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

std::pair<std::string, std::string> LoginCookie(const std::string& secret, int seconds) {
  return {"Set-Cookie", fmt::format("{}={}; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age={}",
                                    LoginEndpoint::kCookie, secret, seconds)};
}

HttpResponse Redirect(const std::string& url) {
  return {303, HttpResponse().content_type, "", {{"Location", url}, {"Cache-Control", "no-store"}}};
}

// For a person, in a browser.
HttpResponse Told(const absl::Status& status) {
  HttpResponse response = RestError(status);
  response.content_type = HttpResponse().content_type;
  response.body = fmt::format(
      "The login did not succeed: {}.\n\nGo back to the page and begin it "
      "anew.\n",
      Message(status));
  return response;
}

// The first value of a name; empty: it is not there.
std::string ValueOf(const std::vector<std::pair<std::string, std::string>>& all,
                    std::string_view name) {
  const auto found = std::ranges::find(all, name, &std::pair<std::string, std::string>::first);
  return found == all.end() ? "" : found->second;
}

// RFC 6749, 5.2.
HttpResponse TokenError(int status, const char* error, std::string_view what) {
  return {status,
          "application/json",
          DumpJson(nlohmann::json{{"error", error}, {"error_description", what}}),
          {{"Cache-Control", "no-store"}}};
}

HttpResponse TokenError(const absl::Status& status) {
  const bool of_token = absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
                        absl::IsAlreadyExists(status) || absl::IsInvalidArgument(status) ||
                        absl::IsFailedPrecondition(status);
  return of_token ? TokenError(400, "invalid_grant", Message(status))
                  : TokenError(503, "temporarily_unavailable", Message(status));
}

}  // namespace

bool LoginEndpoint::Takes(const HttpRequest& request) {
  return request.path == kStart || request.path == kCallback || request.path == kToken;
}

template <typename Answer>
absl::StatusOr<Answer> LoginEndpoint::Call(const char* method,
                                           const google::protobuf::Message& request,
                                           const std::string& peer) {
  Answer answer;
  LoginExchange exchange(request, answer, peer);
  SFT_RETURN_IF_ERROR(door_.Serve(*methods_.Find(method), exchange));
  return answer;
}

void LoginEndpoint::Give(std::shared_ptr<HttpStream> stream,
                         std::function<HttpResponse(HttpStream&)> work) {
  if (waiting_ >= kMostWaiting) {
    return stream->Respond(RestError(Unavailable("too many logins wait: try again later")));
  }
  ++waiting_;
  hands_.Give([this, stream = std::move(stream), work = std::move(work)] {
    --waiting_;
    stream->Respond(work(*stream));
  });
}

void LoginEndpoint::Handle(std::shared_ptr<HttpStream> stream) {
  const HttpRequest& request = stream->request();
  const bool token = request.path == kToken;
  const char* const wanted = token ? "POST" : "GET";
  if (request.method != wanted) {
    HttpResponse refusal = RestError(
        absl::UnimplementedError(fmt::format("{} is asked with {}", request.path, wanted)));
    refusal.status = 405;
    refusal.fields.emplace_back("Allow", wanted);
    return stream->Respond(refusal);
  }
  if (!token) {
    const bool starts = request.path == kStart;
    return Give(std::move(stream), [this, starts](HttpStream& asked) {
      return starts ? Start(asked) : Finish(asked);
    });
  }
  HttpStream& asked = *stream;
  asked.ReadBody(kMostBytes, [this, stream = std::move(stream)](absl::StatusOr<std::string> body) {
    if (!body.ok()) {
      return stream->Respond(TokenError(400, "invalid_request", Message(body.status())));
    }
    Give(stream,
         [this, body = *std::move(body)](HttpStream& given) { return Exchange(given, body); });
  });
}

HttpResponse LoginEndpoint::Start(const HttpStream& stream) {
  const std::string secret = RandomId("", kSecretLength);
  const LoginSecrets secrets(secret);
  v1::StartLoginRequest request;
  request.set_redirect_uri(sessions_.url() + std::string(kCallback));
  request.set_state(secrets.state);
  request.set_nonce(secrets.nonce);
  request.set_code_challenge(ChallengeOf(secrets.verifier));
  const auto started =
      Call<v1::StartLoginResponse>("AuthService.StartLogin", request, stream.peer());
  if (!started.ok()) return Told(started.status());
  HttpResponse response = Redirect(started->authorization_url());
  response.fields.push_back(LoginCookie(secret, kLoginSeconds));
  return response;
}

HttpResponse LoginEndpoint::Finish(const HttpStream& stream) {
  const std::string secret = CookieIn(stream.request().Field("cookie"), kCookie).value_or("");
  const auto query = ReadQuery(stream.request().query);
  const LoginSecrets secrets(secret);
  if (secret.empty() || !query.has_value() || ValueOf(*query, "state") != secrets.state) {
    return Told(absl::UnauthenticatedError(
        "this browser has not begun it here, or more than ten minutes ago"));
  }
  HttpResponse response;
  const std::string error = ValueOf(*query, "error");
  if (!error.empty()) {
    response = Told(PermissionDenied("the provider says: " + Plain(error, 200)));
  } else {
    v1::FinishLoginRequest request;
    request.set_code(ValueOf(*query, "code"));
    request.set_redirect_uri(sessions_.url() + std::string(kCallback));
    request.set_nonce(secrets.nonce);
    request.set_code_verifier(secrets.verifier);
    const auto finished =
        Call<v1::FinishLoginResponse>("AuthService.FinishLogin", request, stream.peer());
    if (finished.ok()) {
      response = Redirect("/");
      response.fields.push_back(
          SessionEndpoint::CookieOf(sessions_.Open(finished->login().token().id(), /*owns=*/true)));
    } else {
      response = Told(finished.status());
    }
  }
  response.fields.push_back(LoginCookie("", 0));  // it is over, in whatever way
  return response;
}

HttpResponse LoginEndpoint::Exchange(const HttpStream& stream, const std::string& body) {
  if (!stream.request().Field("content-type").starts_with("application/x-www-form-urlencoded")) {
    return TokenError(415, "invalid_request", "the Content-Type is not a form's");
  }
  const auto form = ReadQuery(body);
  if (!form.has_value()) return TokenError(400, "invalid_request", "the form cannot be read");
  if (ValueOf(*form, "grant_type") != kExchangeGrant) {
    return TokenError(400, "unsupported_grant_type",
                      fmt::format("the grant_type is {}", kExchangeGrant));
  }
  if (std::ranges::find(kJwtTypes, ValueOf(*form, "subject_token_type")) == std::end(kJwtTypes)) {
    return TokenError(400, "invalid_request",
                      fmt::format("the subject_token_type is {}", kJwtTypes[0]));
  }
  v1::ExchangeTokenRequest request;
  request.set_subject_token(ValueOf(*form, "subject_token"));
  const auto made =
      Call<v1::CreateTokenResponse>("AuthService.ExchangeToken", request, stream.peer());
  if (!made.ok()) return TokenError(made.status());
  const v1::Token& token = made->token();
  const nlohmann::json answer = {
      {"access_token", made->secret()},
      {"issued_token_type", kAccessToken},
      {"token_type", "Bearer"},
      {"expires_in", token.expire_time().seconds() - token.create_time().seconds()}};
  return {200, "application/json", DumpJson(answer), {{"Cache-Control", "no-store"}}};
}

}  // namespace sft::server
