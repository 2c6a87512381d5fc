#include "server/http/openai_call.h"

#include <fmt/format.h>

#include <random>

#include "common/base/ids.h"
#include "server/http/openai_endpoint.h"
#include "server/http/percent.h"
#include "server/openai/answer.h"
#include "server/openai/errors.h"
#include "server/openai/tokenizer.h"

namespace sft::server {
namespace {

constexpr std::string_view kJobs = "/jobs/", kModels = "/v1/models";

// A call whose one request is there, and whose answers somebody takes.
class HttpExchange final : public Exchange {
 public:
  HttpExchange(const HttpCall& http, const google::protobuf::Message& request,
               const std::function<bool(const google::protobuf::Message&)>& take)
      : http_(http), request_(request), take_(take) {
    origin_.peer = http.peer();
    origin_.authorization = http.request().Field("authorization");
  }
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
  const std::function<bool(const google::protobuf::Message&)>& take_;
  CallOrigin origin_;
  bool read_ = false;
};

// What stands in a path, whose codes the server has checked.
std::string Decoded(std::string_view text) { return PercentDecoded(text).value_or(std::string()); }

std::string EventOf(const std::string& data) { return fmt::format("data: {}\n\n", data); }

int64_t RandomSeed() {
  std::random_device device;
  return static_cast<int64_t>((uint64_t{device()} << 32 | device()) >> 1);
}

HttpResponse JsonResponse(std::string body) {
  return {200, "application/json", std::move(body), {}};
}

HttpResponse ErrorResponse(const absl::Status& status) {
  openai::ErrorAnswer error = openai::ErrorOf(status);
  HttpResponse response{error.http_status, "application/json", std::move(error.body), {}};
  if (error.retry_after_s > 0) {
    response.fields.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  if (error.http_status == 401) response.fields.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace

bool OpenAiCall::Takes(const std::string& path) {
  const std::string page = RouteOf(path).page;
  return page == "/v1" || page.starts_with("/v1/") || page == "/tokenize" ||
         page == "/detokenize" || page == "/tokenizer_info";
}

OpenAiCall::Route OpenAiCall::RouteOf(const std::string& path) {
  if (!path.starts_with(kJobs)) return {"", path};
  const size_t end = path.find('/', kJobs.size());
  return {Decoded(path.substr(kJobs.size(), end - kJobs.size())),
          end == path.npos ? "/" : path.substr(end)};
}

absl::Status OpenAiCall::Call(const char* method, const google::protobuf::Message& request,
                              const TakeMessage& take) {
  HttpExchange exchange(http_, request, take);
  return door_.Serve(*methods_.Find(method), exchange);
}

template <typename Answer>
absl::StatusOr<Answer> OpenAiCall::CallOnce(const char* method,
                                            const google::protobuf::Message& request) {
  Answer answer;
  bool taken = false;
  const absl::Status status = Call(method, request, [&](const google::protobuf::Message& message) {
    answer.CopyFrom(message);
    return taken = true;
  });
  SFT_RETURN_IF_ERROR(status);
  if (taken) return answer;
  return absl::CancelledError(
      "the caller has closed his half of the connection: keep it open until the answer is there");
}

void OpenAiCall::Run() {
  const absl::Status status = Serve();
  if (!status.ok()) Refuse(status);
}

void OpenAiCall::Refuse(const absl::Status& status) {
  if (!http_.begun()) {
    (void)http_.Respond(ErrorResponse(status));
    return;
  }
  // What has begun well can only say so in an event; the end of the body is left out, so that
  // nobody takes it for whole.
  (void)http_.Write(EventOf(openai::ErrorOf(status).body));
}

absl::Status OpenAiCall::Serve() {
  const Route route = RouteOf(http_.request().path);
  const bool gets = http_.request().method == "GET";
  const bool posts = http_.request().method == "POST";
  const bool of_models = route.page == kModels || route.page.starts_with("/v1/models/");
  const bool is_post = route.page == "/v1/chat/completions" || route.page == "/v1/completions" ||
                       route.page == "/tokenize" || route.page == "/detokenize";
  if (!of_models && !is_post && route.page != "/tokenizer_info") {
    return openai::NoModel(
        "there are /v1/models, /v1/chat/completions, /v1/completions, /tokenize, /detokenize and "
        "/tokenizer_info, and each below /jobs/JOB");
  }
  if (is_post ? !posts : !gets) {
    return absl::UnimplementedError(
        fmt::format("{} is asked with {}", route.page, is_post ? "POST" : "GET"));
  }
  // Before a byte of the body is read: who it is.
  SFT_ASSIGN_OR_RETURN(served_,
                       CallOnce<v1::ListServedModelsResponse>("ServingService.ListServedModels",
                                                              v1::ListServedModelsRequest()));
  if (of_models) return Models(route);
  if (route.page == "/tokenizer_info") return Tokenizer(route);
  if (route.page == "/tokenize") return Tokenize(route);
  if (route.page == "/detokenize") return Detokenize(route);
  return Complete(route, route.page == "/v1/chat/completions");
}

// A page of another site can make a browser send a form or plain text here, but no JSON.
absl::StatusOr<std::string> OpenAiCall::Body() {
  const std::string_view type = http_.request().Field("content-type");
  if (!type.starts_with("application/json")) {
    return InvalidArgument("the Content-Type is not application/json");
  }
  return http_.ReadBody(OpenAiEndpoint::kMostBodyBytes);
}

absl::StatusOr<openai::Model> OpenAiCall::Choose(const std::string& model,
                                                 const Route& route) const {
  return openai::ChooseModel(served_, model, route.job);
}

absl::Status OpenAiCall::Respond(std::string body) {
  (void)http_.Respond(JsonResponse(std::move(body)));
  return absl::OkStatus();
}

absl::Status OpenAiCall::Models(const Route& route) {
  v1::ListServedModelsResponse served;
  for (const v1::ServedModel& each : served_.models()) {
    if (route.job.empty() || each.name().ends_with("/" + route.job)) *served.add_models() = each;
  }
  if (route.page == kModels) return Respond(openai::ModelList(served));
  SFT_ASSIGN_OR_RETURN(
      std::string page,
      openai::ModelPage(served, Decoded(std::string_view(route.page).substr(kModels.size() + 1))));
  return Respond(std::move(page));
}

absl::Status OpenAiCall::Complete(const Route& route, bool chat) {
  SFT_ASSIGN_OR_RETURN(const std::string body, Body());
  SFT_ASSIGN_OR_RETURN(openai::Asked asked, parsers_.Run([&] {
    return chat ? openai::ReadChat(body) : openai::ReadCompletion(body);
  }));
  SFT_ASSIGN_OR_RETURN(const openai::Model model, Choose(asked.model, route));
  asked.request.set_name(model.job);
  asked.request.set_base(model.base);
  // Without a seed each request draws differently; the job file's one seed would repeat answers.
  if (!asked.request.has_seed()) asked.request.set_seed(RandomSeed());
  return Stream(asked, model);
}

absl::Status OpenAiCall::Stream(const openai::Asked& asked, const openai::Model& model) {
  openai::Answer answer(asked, RandomId(asked.chat ? "chatcmpl" : "cmpl"), model.id,
                        UnixMicros(Clock::Real().Wall()) / 1'000'000);
  absl::Status failed;
  const auto take = [&](const google::protobuf::Message& message) {
    const auto events = answer.Take(static_cast<const v1::CompleteResponse&>(message));
    if (!events.ok()) failed = events.status();
    if (!events.ok() || !asked.stream) return events.ok();
    if (!http_.begun() &&
        !http_.Begin({200, "text/event-stream", "", {{"Cache-Control", "no-cache"}}})) {
      return false;
    }
    std::string text;
    for (const std::string& event : *events) text += EventOf(event);
    // A line that says nothing shows that the answer is still being made.
    return http_.Write(text.empty() ? ": still there\n\n" : text);
  };
  const absl::Status status = Call("ServingService.Complete", asked.request, take);
  if (!failed.ok()) return failed;
  // What the job's process refuses is the prompt; of its base, it may be the base.
  if (!asked.request.base()) {
    SFT_RETURN_IF_ERROR(openai::InParam(asked.chat ? "messages" : "prompt", status));
  }
  SFT_RETURN_IF_ERROR(status);
  if (!asked.stream) return Respond(answer.Whole());
  std::string last;
  for (const std::string& event : answer.LastEvents()) last += EventOf(event);
  (void)(http_.Write(last) && http_.End());
  return absl::OkStatus();
}

absl::Status OpenAiCall::Tokenize(const Route& route) {
  SFT_ASSIGN_OR_RETURN(const std::string body, Body());
  SFT_ASSIGN_OR_RETURN(auto asked, parsers_.Run([&] { return openai::ReadTokenize(body); }));
  SFT_ASSIGN_OR_RETURN(const openai::Model model, Choose(asked.model, route));
  asked.request.set_name(model.job);
  SFT_ASSIGN_OR_RETURN(const auto answer,
                       CallOnce<v1::TokenizeResponse>("ServingService.Tokenize", asked.request));
  return Respond(openai::TokenizeJson(answer));
}

absl::Status OpenAiCall::Detokenize(const Route& route) {
  SFT_ASSIGN_OR_RETURN(const std::string body, Body());
  SFT_ASSIGN_OR_RETURN(auto asked, parsers_.Run([&] { return openai::ReadDetokenize(body); }));
  SFT_ASSIGN_OR_RETURN(const openai::Model model, Choose(asked.model, route));
  asked.request.set_name(model.job);
  SFT_ASSIGN_OR_RETURN(const auto answer, CallOnce<v1::DetokenizeResponse>(
                                              "ServingService.Detokenize", asked.request));
  return Respond(openai::DetokenizeJson(answer));
}

absl::Status OpenAiCall::Tokenizer(const Route& route) {
  SFT_ASSIGN_OR_RETURN(const openai::Model model, Choose("", route));
  v1::GetTokenizerRequest request;
  request.set_name(model.job);
  SFT_ASSIGN_OR_RETURN(const auto answer,
                       CallOnce<v1::ServedTokenizer>("ServingService.GetTokenizer", request));
  return Respond(openai::TokenizerJson(answer));
}

}  // namespace sft::server
