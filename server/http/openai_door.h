#pragma once

#include <google/protobuf/message.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/door/methods.h"
#include "server/http/body_parsers.h"
#include "server/http/http_call.h"

namespace sft::server {

// One request to the OpenAI-compatible endpoint: its parts, its answer, and calls of methods
// through the door that it is made of. Of the one thread that serves it.
class OpenAiDoor {
 public:
  // All borrowed.
  OpenAiDoor(Door& door, const Methods& methods, BodyParsers& parsers, HttpCall& http)
      : parsers(parsers), http(http), door_(door), methods_(methods) {}

  BodyParsers& parsers;
  HttpCall& http;

  std::string_view Field(std::string_view name) const { return http.request().Field(name); }
  bool gets() const { return http.request().method == "GET"; }
  bool posts() const { return http.request().method == "POST"; }
  bool deletes() const { return http.request().method == "DELETE"; }
  // The project that the caller names; empty: none.
  std::string project() const { return std::string(Field("openai-project")); }
  // Whether the client says that it has asked this before.
  bool repeats() const;
  // A body of JSON, before it is parsed. INVALID_ARGUMENT for another Content-Type: a page of
  // another site can make a browser send a form or plain text here, but no JSON.
  absl::StatusOr<std::string> Body();
  // Takes the body of a request that asks for nothing beyond its path.
  absl::Status NoBody();
  // Each name once. INVALID_ARGUMENT for one that is not among these.
  using Query = std::vector<std::pair<std::string, std::string>>;
  absl::StatusOr<Query> ReadQueryOf(const std::vector<std::string_view>& names) const;

  absl::Status Respond(std::string json);
  // Who calls, by all that HTTP tells of it.
  CallOrigin origin() const;

  // A call of a method through the door. `take` gets each answer; false: nobody wants more.
  using TakeMessage = std::function<bool(const google::protobuf::Message& answer)>;
  absl::Status Call(const char* method, const google::protobuf::Message& request,
                    const TakeMessage& take);
  // One whose messages are the exchange's.
  absl::Status Serve(const char* method, Exchange& exchange);
  template <typename Answer>
  absl::StatusOr<Answer> CallOnce(const char* method, const google::protobuf::Message& request) {
    Answer answer;
    bool taken = false;
    SFT_RETURN_IF_ERROR(Call(method, request, [&](const google::protobuf::Message& message) {
      answer.CopyFrom(message);
      return taken = true;
    }));
    if (taken) return answer;
    return absl::CancelledError(
        "the caller has closed his half of the connection: keep it open until the answer is there");
  }

 private:
  Door& door_;
  const Methods& methods_;
};

// What stands in a path, whose codes the server has checked.
std::string DecodedPath(std::string_view text);

}  // namespace sft::server
