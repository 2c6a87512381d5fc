#include "server/http/rest_api.h"

#include <fmt/format.h>

#include <utility>

#include "common/base/ids.h"
#include "server/http/feed.h"
#include "server/http/http_call.h"
#include "server/http/openapi.h"
#include "server/http/rest_json.h"
#include "server/http/upload_exchange.h"

namespace sft::server {
namespace {

constexpr std::string_view kJson = "application/json", kBytes = "application/octet-stream";
constexpr int kLifeLength = 6;
constexpr Nanos kPatience = std::chrono::milliseconds(20);

// One request in JSON; `write` takes each answer as such. False: nobody wants more.
class JsonExchange final : public Exchange {
 public:
  JsonExchange(const CallOrigin& origin, const std::string& body,
               const std::function<bool(std::string json)>& write,
               const std::function<bool()>& gone)
      : origin_(origin), body_(body), write_(write), gone_(gone) {}
  const CallOrigin& origin() const override { return origin_; }
  absl::StatusOr<bool> Read(google::protobuf::Message& message) override {
    SFT_RETURN_IF_ERROR(ReadJson(body_, message));
    const auto* const fields = message.GetDescriptor()->FindFieldByName("fields");
    names_fields_ = fields != nullptr && message.GetReflection()->FieldSize(message, fields) > 0;
    return true;
  }
  bool Write(const google::protobuf::Message& message) override {
    return write_(JsonOf(message, /*defaults=*/!names_fields_));
  }
  bool Gone() const override { return gone_(); }

 private:
  const CallOrigin& origin_;
  const std::string& body_;
  const std::function<bool(std::string json)>& write_;
  const std::function<bool()>& gone_;
  // It says which fields the answer shall have: the others are not printed either.
  bool names_fields_ = false;
};

HttpResponse JsonAnswer(std::string body) {
  return {200, "application/json", std::move(body), {{"Cache-Control", "no-store"}}};
}

HttpResponse OnlyBy(std::string_view method) {
  HttpResponse response =
      RestError(absl::UnimplementedError(fmt::format("this is asked with {}", method)));
  response.status = 405;
  response.fields.emplace_back("Allow", method);
  return response;
}

// Whether the media type alone is this.
bool IsOfType(std::string_view type, std::string_view wanted) {
  const std::string_view media = type.substr(0, type.find(';'));
  return media.substr(0, media.find_last_not_of(' ') + 1) == wanted;
}

HttpResponse NotOfType(std::string_view wanted) {
  HttpResponse refusal =
      RestError(InvalidArgument(fmt::format("the Content-Type is not {}", wanted)));
  refusal.status = 415;
  return refusal;
}

HttpResponse TooManyStreams() {
  return RestError(ResourceExhausted(fmt::format(
      "{} streams and uploads of yours are under way: let one come to its end, or end one, before "
      "the next",
      RestApi::kStreamThreadsOfOne)));
}

}  // namespace

RestApi::RestApi(Door& door, const Methods& methods, ChangeHub& hub, WebSessions& sessions,
                 Clock& clock)
    : door_(door),
      methods_(methods),
      life_(RandomId("", kLifeLength)),
      description_(JsonAnswer(OpenApiOf(methods))),
      events_{door, hub, sessions, clock},
      hands_(kThreads, "rest"),
      stream_hands_(kStreamThreads, "rest stream") {
  events_.lookers.Start();
}

RestApi::~RestApi() {
  hands_.Stop();
  stream_hands_.Stop();
  // Each is looked at once more, as its caller has gone.
  while (events_.live > 0) Clock::Real().Sleep(kPatience);
  events_.lookers.Stop();
}

bool RestApi::Serves(const Method& method) {
  const Caller caller = method.rule.caller;
  const bool of_users =
      caller == Caller::kUser || caller == Caller::kEither || caller == Caller::kAnybody;
  return of_users && method.kind != Method::Kind::kClientStream &&
         method.kind != Method::Kind::kStanding;
}

bool RestApi::ServesUpload(const Method& method) {
  return method.kind == Method::Kind::kClientStream && method.rule.caller == Caller::kEither;
}

void RestApi::Handle(std::shared_ptr<HttpStream> stream, WebCaller caller) {
  const HttpRequest& request = stream->request();
  std::string name = request.path.substr(kRoot.size());
  const bool gets = request.method == "GET" || request.method == "HEAD";
  if (name == "feed" || name == "openapi.json") {
    if (!gets || (name == "feed" && request.method != "GET")) {
      return stream->Respond(OnlyBy("GET"));
    }
    return name == "feed" ? HandleFeed(std::move(stream), std::move(caller))
                          : stream->Respond(description_);
  }
  const size_t slash = name.find('/');
  if (slash != name.npos) name[slash] = '.';
  const Method* const method = slash == name.npos ? nullptr : methods_.Find(name);
  if (method != nullptr && ServesUpload(*method)) {
    return HandleUpload(std::move(stream), std::move(caller), *method);
  }
  if (method == nullptr || !Serves(*method)) {
    return stream->Respond(RestError(NotFound(
        fmt::format("there is no {}{}: docs/rest.md says what there is, {}openapi.json too", kRoot,
                    request.path.substr(kRoot.size()).substr(0, 80), kRoot))));
  }
  if (request.method != "POST") return stream->Respond(OnlyBy("POST"));
  if (!IsOfType(request.Field("content-type"), kJson)) return stream->Respond(NotOfType(kJson));
  // Of who is nobody no body is read, but for what anybody may ask; the door says why, and counts
  // it.
  const bool anybody = method->rule.caller == Caller::kAnybody;
  if (!anybody && !door_.gate().Authenticate(caller.origin).ok()) {
    return Run(std::move(stream), std::move(caller), *method, "");
  }
  HttpStream& asked = *stream;
  asked.ReadBody(anybody ? kMostOfAnybody : kMostBodyBytes,
                 [this, stream = std::move(stream), caller = std::move(caller),
                  method](absl::StatusOr<std::string> body) mutable {
                   if (!body.ok()) return stream->Respond(RestError(body.status()));
                   Run(std::move(stream), std::move(caller), *method, *std::move(body));
                 });
}

void RestApi::Give(Hands& hands, std::atomic<int>& waiting, std::shared_ptr<HttpStream> stream,
                   std::function<void()> work) {
  if (waiting >= kMostWaiting) {
    return stream->Respond(RestError(Unavailable("too many calls wait: try again later")));
  }
  ++waiting;
  hands.Give([&waiting, work = std::move(work)] {
    --waiting;
    work();
  });
}

void RestApi::Run(std::shared_ptr<HttpStream> stream, WebCaller caller, const Method& method,
                  std::string body) {
  if (method.kind == Method::Kind::kFollow) {
    return EventCall::Start(events_, std::move(stream), std::move(caller),
                            std::shared_ptr<const Method>(std::shared_ptr<void>(), &method),
                            std::move(body));
  }
  const bool unary = method.kind == Method::Kind::kUnary;
  const std::shared_ptr<void> place = unary ? nullptr : TakeStreamThread(caller);
  if (!unary && place == nullptr) {
    return stream->Respond(TooManyStreams());
  }
  const auto work = [this, place, stream, caller = std::move(caller), &method,
                     body = std::move(body)] {
    return place == nullptr ? RunUnary(*stream, caller, method, body)
                            : RunStream(stream, caller, method, body);
  };
  Give(unary ? hands_ : stream_hands_, unary ? waiting_ : waiting_streams_, stream, work);
}

std::shared_ptr<void> RestApi::TakeStreamThread(const WebCaller& caller) {
  const absl::StatusOr<Principal> principal = door_.gate().Authenticate(caller.origin);
  const std::string who = principal.ok() ? principal->Title() : CallContext::kNobody;
  // The local user is everybody on the machine.
  const int most =
      principal.ok() && principal->local ? kStreamThreads + kMostWaiting : kStreamThreadsOfOne;
  const MutexLock lock(mutex_);
  int& count = streams_of_[who];
  if (count >= most) return nullptr;
  ++count;
  return {this, [this, who](void*) {
            const MutexLock ended(mutex_);
            if (--streams_of_[who] == 0) streams_of_.erase(who);
          }};
}

void RestApi::RunUnary(HttpStream& stream, const WebCaller& caller, const Method& method,
                       const std::string& body) {
  std::string answer;
  const std::function<bool(std::string)> take = [&](std::string json) {
    answer = std::move(json);
    return true;
  };
  const std::function<bool()> gone = [&] { return stream.Gone(); };
  JsonExchange exchange(caller.origin, body, take, gone);
  const absl::Status status = door_.Serve(method, exchange);
  stream.Respond(status.ok() ? JsonAnswer(std::move(answer)) : RestError(status));
}

void RestApi::RunStream(std::shared_ptr<HttpStream> stream, const WebCaller& caller,
                        const Method& method, const std::string& body) {
  HttpCall::Shared shared;
  HttpCall call(std::move(stream), shared);
  const HttpResponse head{
      200, "text/event-stream", "", {{"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}}};
  const auto logged_out = [&] { return caller.LoggedOut(events_.sessions); };
  const std::function<bool(std::string)> send = [&](const std::string& json) {
    if (logged_out() || (!call.begun() && !call.Begin(head))) return false;
    return call.Write(EventText("", "", json));
  };
  const std::function<bool()> gone = [&] { return call.Gone() || logged_out(); };
  JsonExchange exchange(caller.origin, body, send, gone);
  const absl::Status status = door_.Serve(method, exchange);
  if (logged_out()) return;  // cut off, as what follows is
  if (!status.ok() && !call.begun()) {
    (void)call.Respond(RestError(status));
    return;
  }
  if (!call.begun()) (void)call.Begin(head);
  (void)call.Write(status.ok() ? EventText("end", "", "{}")
                               : EventText("error", "", ErrorJson(status)));
  (void)call.End();
}

void RestApi::HandleUpload(std::shared_ptr<HttpStream> stream, WebCaller caller,
                           const Method& method) {
  const HttpRequest& request = stream->request();
  if (request.method != "POST" && request.method != "PUT") {
    return stream->Respond(OnlyBy("POST, PUT"));
  }
  if (!IsOfType(request.Field("content-type"), kBytes)) return stream->Respond(NotOfType(kBytes));
  v1::UploadBlobRequest first;
  absl::Status read = ReadFields(request.query, first);
  if (read.ok() && first.size() == 0) {
    first.set_size(first.offset() + static_cast<int64_t>(request.length.value_or(0)));
    if (request.chunked) read = InvalidArgument("size: a body in chunks does not tell it");
  }
  if (!read.ok()) return stream->Respond(RestError(read));
  const std::shared_ptr<void> place = TakeStreamThread(caller);
  if (place == nullptr) return stream->Respond(TooManyStreams());
  Give(stream_hands_, waiting_streams_, stream,
       [this, place, stream, caller = std::move(caller), &method, first] {
         RunUpload(stream, caller, method, first);
       });
}

void RestApi::RunUpload(std::shared_ptr<HttpStream> stream, const WebCaller& caller,
                        const Method& method, const v1::UploadBlobRequest& first) {
  HttpCall::Shared shared;
  HttpCall call(std::move(stream), shared);
  UploadExchange exchange(
      caller.origin, first, [&] { return call.ReadSome(); },
      [&] { return call.Gone() || caller.LoggedOut(events_.sessions); });
  const absl::Status status = door_.Serve(method, exchange);
  HttpResponse response = status.ok() ? JsonAnswer(JsonOf(exchange.answer())) : RestError(status);
  if (absl::IsOutOfRange(status)) response.status = 409;  // the offset, not the body's size
  (void)call.Respond(response);
}

void RestApi::HandleFeed(std::shared_ptr<HttpStream> stream, WebCaller caller) {
  const HttpRequest& request = stream->request();
  absl::StatusOr<FeedQuery> query =
      ReadFeedQuery(request.query, request.Field("last-event-id"), life_);
  if (!query.ok()) return stream->Respond(RestError(query.status()));
  Feed::Start(events_, methods_, std::move(stream), std::move(caller), *std::move(query), life_);
}

}  // namespace sft::server
