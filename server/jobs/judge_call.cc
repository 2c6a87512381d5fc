#include "server/jobs/judge_call.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <thread>

#include "common/base/json.h"
#include "common/base/mutex.h"
#include "common/base/plain_text.h"
#include "common/base/utf8.h"
#include "common/obs/log.h"

namespace sft::server {
namespace {

using Json = nlohmann::json;
using Response = v1::AskJudgeResponse;

constexpr size_t kMostAnswer = size_t{1} << 20, kMostShown = 300;
constexpr std::chrono::milliseconds kLook{200};

// What is shared by the thread that calls and the one that waits, whichever ends last.
struct Shared {
  std::atomic<bool> left = false;  // nobody waits any more
  Mutex mutex;
  CondVar done;
  std::optional<Response> response SFT_GUARDED_BY(mutex);
};

Response Failed(std::string error, bool again) {
  Response response;
  response.set_error(std::move(error));
  response.set_again(again);
  return response;
}

std::string Body(const JudgeCall& call) {
  return DumpJson(Json{{"model", call.model},
                       {"messages", {{{"role", "user"}, {"content", call.prompt}}}},
                       {"temperature", 0},
                       {"max_tokens", call.max_tokens},
                       {"stream", false}});
}

// An API may repeat the key that it refuses.
std::string WithoutKey(std::string text, const std::string& key) {
  constexpr std::string_view kHidden = "***";
  if (key.empty()) return text;
  // Behind what was put in: a key of stars would be found in it again.
  for (size_t at = text.find(key); at != text.npos; at = text.find(key, at + kHidden.size())) {
    text.replace(at, key.size(), kHidden);
  }
  return text;
}

// What the API says is wrong, in words.
std::string ReasonOf(const std::string& body) {
  const Json json = ParseJson(body);
  const Json error = json.is_object() && json.contains("error") ? json["error"] : Json();
  if (error.is_string()) return error.get<std::string>();
  if (error.is_object() && error.contains("message") && error["message"].is_string()) {
    return error["message"].get<std::string>();
  }
  return body;
}

double SecondsOfHeader(std::string_view text) {
  double seconds = 0;  // a date is not read: the wait is then the caller's own
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  return error == std::errc() && end == text.data() + text.size() && seconds > 0 ? seconds : 0;
}

std::string TextOf(const std::string& body) {
  const Json json = ParseJson(body);
  const Json::json_pointer at("/choices/0/message/content");
  return json.is_object() && json.contains(at) && json.at(at).is_string()
             ? ToUtf8(json.at(at).get<std::string>())
             : "";
}

Response Read(const hub::HttpResponse& answer, const std::string& body, const JudgeCall& call) {
  const int status = answer.status;
  if (status == 200) {
    Response response;
    response.set_text(WithoutKey(TextOf(body), call.key));
    if (!response.text().empty()) return response;
    return Failed(
        fmt::format("its answer holds no text: {}", Plain(WithoutKey(body, call.key), kMostShown)),
        /*again=*/false);
  }
  const bool again = status == 408 || status == 409 || status == 425 || status == 429 ||
                     (status >= 500 && status <= 599);
  Response response = Failed(fmt::format("it answers with HTTP status {}{}: {}", status,
                                         status / 100 == 3 ? ", and is not followed elsewhere" : "",
                                         Plain(WithoutKey(ReasonOf(body), call.key), kMostShown)),
                             again);
  response.set_after_seconds(SecondsOfHeader(answer.Header("retry-after")));
  return response;
}

Response Send(hub::HttpClient& http, const JudgeCall& call, const Shared& shared) {
  hub::HttpRequest request;
  request.method = "POST";
  request.url = call.url + "/chat/completions";
  request.headers = {{"Content-Type", "application/json"}, {"Accept", "application/json"}};
  if (!call.key.empty()) request.headers.emplace_back("Authorization", "Bearer " + call.key);
  request.body = Body(call);
  const absl::StatusOr<hub::HttpResponse> answer = http.Send(request);
  const auto broken = [&](const absl::Status& status) {
    return Failed(WithoutKey(std::string(Message(status)), call.key), absl::IsUnavailable(status));
  };
  if (!answer.ok()) return broken(answer.status());
  std::string body;
  char buffer[16384];
  while (!shared.left && body.size() < kMostAnswer) {
    const absl::StatusOr<size_t> got = answer->body->Read(buffer, sizeof(buffer));
    if (!got.ok()) return broken(got.status());
    if (*got == 0) return Read(*answer, body, call);
    body.append(buffer, *got);
  }
  return Failed(fmt::format("its answer has more than {} bytes", kMostAnswer), /*again=*/false);
}

}  // namespace

absl::StatusOr<Response> MakeJudgeCall(std::shared_ptr<hub::HttpClient> http, const JudgeCall& call,
                                       Clock& clock, const std::atomic<bool>& stop,
                                       const FileRelay::Gone& gone) {
  const auto shared = std::make_shared<Shared>();
  try {
    std::thread([shared, http = std::move(http), call = call]() mutable {
      obs::NameThread("judge-call");
      Response response = Send(*http, call, *shared);
      call.place.reset();  // before whoever waits asks for the next one
      const MutexLock lock(shared->mutex);
      shared->response = std::move(response);
      shared->done.NotifyAll();
    }).detach();
  } catch (const std::system_error& error) {
    return ResourceExhausted(fmt::format("no thread for a call of a judge: {}", error.what()));
  }
  const MonoTime end = clock.Mono() + call.timeout;
  const MutexLock lock(shared->mutex);
  while (!shared->response.has_value()) {
    const bool over = clock.Mono() >= end, left = gone != nullptr && gone();
    if (over || stop || left) {
      shared->left = true;
      if (stop) return Unavailable("the server is stopping");
      if (left) return absl::CancelledError("the rank that asked has gone");
      return Failed(fmt::format("no answer within {} s", call.timeout.count()), /*again=*/true);
    }
    shared->done.WaitFor(shared->mutex, kLook);
  }
  return *std::move(shared->response);
}

}  // namespace sft::server
