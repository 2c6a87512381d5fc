#include "server/http/openai_door.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/utf8.h"
#include "server/door/followed_call.h"
#include "server/http/openai_endpoint.h"
#include "server/http/percent.h"
#include "server/openai/errors.h"

namespace sft::server {
namespace {

// A call whose one request is there, and whose answers somebody takes.
class HttpExchange final : public Exchange {
 public:
  HttpExchange(const OpenAiDoor& door, const google::protobuf::Message& request,
               const OpenAiDoor::TakeMessage& take)
      : http_(door.http), request_(request), take_(take), origin_(door.origin()) {}
  const CallOrigin& origin() const override { return origin_; }
  absl::StatusOr<bool> Read(google::protobuf::Message& message) override {
    if (std::exchange(read_, true)) return false;
    message.CopyFrom(request_);
    return true;
  }
  bool Write(const google::protobuf::Message& message) override {
    return !http_.Gone() && take_(message);
  }
  bool Gone() const override { return http_.Gone(); }

 private:
  const HttpCall& http_;
  const google::protobuf::Message& request_;
  const OpenAiDoor::TakeMessage& take_;
  const CallOrigin origin_;
  bool read_ = false;
};

}  // namespace

bool OpenAiDoor::repeats() const {
  const std::string_view count = Field("x-stainless-retry-count");
  return !count.empty() && count != "0";
}

absl::StatusOr<std::string> OpenAiDoor::Body() {
  if (!Field("content-type").starts_with("application/json")) {
    return InvalidArgument("the Content-Type is not application/json");
  }
  return http.ReadBody(OpenAiEndpoint::kMostBodyBytes);
}

absl::Status OpenAiDoor::NoBody() {
  constexpr size_t kMost = 1024;
  SFT_ASSIGN_OR_RETURN(const std::string body, http.ReadBody(kMost));
  const bool empty = body.find_first_not_of(" \t\r\n{}") == body.npos || body == "null";
  return empty ? absl::OkStatus() : InvalidArgument("this takes no body: leave it out");
}

absl::StatusOr<OpenAiDoor::Query> OpenAiDoor::ReadQueryOf(
    const std::vector<std::string_view>& names) const {
  auto query = ReadQuery(http.request().query);
  if (!query.has_value()) return InvalidArgument("the query cannot be read");
  for (const auto& [name, value] : *query) {
    const std::string shown = WithoutHidden(name.substr(0, 80));
    // "metadata[key]" is one of "metadata".
    if (std::ranges::find(names, name.substr(0, name.find('['))) == names.end()) {
      return openai::ParamError(shown, fmt::format("{} is not served here: leave it out", shown));
    }
    const auto same = [&name = name](const auto& each) { return each.first == name; };
    if (std::ranges::count_if(*query, same) > 1) {
      return openai::ParamError(shown, fmt::format("{} is given twice", shown));
    }
  }
  return *std::move(query);
}

absl::Status OpenAiDoor::Respond(std::string json) {
  (void)http.Respond({200, "application/json", std::move(json), {}});
  return absl::OkStatus();
}

CallOrigin OpenAiDoor::origin() const {
  CallOrigin origin;
  origin.peer = http.peer();
  origin.authorization = Field("authorization");
  return origin;
}

absl::Status OpenAiDoor::Call(const char* method, const google::protobuf::Message& request,
                              const TakeMessage& take) {
  HttpExchange exchange(*this, request, take);
  return Serve(method, exchange);
}

absl::Status OpenAiDoor::Serve(const char* method, Exchange& exchange) {
  const Method& found = *methods_.Find(method);
  if (found.kind != Method::Kind::kFollow) return door_.Serve(found, exchange);
  // One that does not go on following: it never waits.
  FollowedCall call(door_, found, exchange);
  while (call.Look() == Follower::Next::kAgain) {
  }
  return call.status();
}

std::string DecodedPath(std::string_view text) {
  return PercentDecoded(text).value_or(std::string());
}

}  // namespace sft::server
