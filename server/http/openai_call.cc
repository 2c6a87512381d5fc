#include "server/http/openai_call.h"

#include <fmt/format.h>

#include <random>

#include "common/base/ids.h"
#include "server/http/files_call.h"
#include "server/http/tuned_models.h"
#include "server/http/tuning_call.h"
#include "server/openai/answer.h"
#include "server/openai/errors.h"
#include "server/openai/tokenizer.h"
#include "server/openai/tuned.h"

namespace sft::server {
namespace {

constexpr std::string_view kJobs = "/jobs/", kModels = "/v1/models", kFilesRoot = "/v1/files",
                           kTuningRoot = "/v1/fine_tuning";

bool IsRouteBelow(const std::string& page, std::string_view root) {
  return page.starts_with(root) && (page.size() == root.size() || page[root.size()] == '/');
}

std::string EventOf(const std::string& data) { return fmt::format("data: {}\n\n", data); }

int64_t RandomSeed() {
  std::random_device device;
  return static_cast<int64_t>((uint64_t{device()} << 32 | device()) >> 1);
}

HttpResponse ErrorResponse(const absl::Status& status, openai::Asks asks) {
  openai::ErrorAnswer error = openai::ErrorOf(status, asks);
  HttpResponse response{error.http_status, "application/json", std::move(error.body), {}};
  if (error.retry_after_s > 0) {
    response.fields.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  // Which clients send again otherwise.
  if (!error.again && (error.http_status == 409 || error.http_status == 429)) {
    response.fields.emplace_back("x-should-retry", "false");
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
  return {DecodedPath(path.substr(kJobs.size(), end - kJobs.size())),
          end == path.npos ? "/" : path.substr(end)};
}

void OpenAiCall::Run() {
  const absl::Status status = Serve();
  if (!status.ok()) Refuse(status);
}

void OpenAiCall::Refuse(const absl::Status& status) {
  if (!http_.begun()) {
    (void)http_.Respond(ErrorResponse(status, asks_));
    return;
  }
  // What has begun well can only say so in an event; the end of the body is left out, so that
  // nobody takes it for whole. Of a file, the missing end says it all.
  if (asks_ == openai::Asks::kModel) (void)http_.Write(EventOf(openai::ErrorOf(status).body));
}

absl::Status OpenAiCall::Serve() {
  const Route route = RouteOf(http_.request().path);
  if (route.job.empty() &&
      (IsRouteBelow(route.page, kFilesRoot) || IsRouteBelow(route.page, kTuningRoot))) {
    asks_ = openai::Asks::kTraining;
    if (IsRouteBelow(route.page, kFilesRoot))
      return FilesCall(door_).Serve(route.page.substr(kFilesRoot.size()));
    return TuningCall(door_, creates_).Serve(route.page.substr(kTuningRoot.size()));
  }
  return Ask(route);
}

absl::Status OpenAiCall::Ask(const Route& route) {
  const bool of_models = IsRouteBelow(route.page, kModels);
  const bool is_post = route.page == "/v1/chat/completions" || route.page == "/v1/completions" ||
                       route.page == "/tokenize" || route.page == "/detokenize";
  if (!of_models && !is_post && route.page != "/tokenizer_info") {
    return openai::NoModel(
        "there are /v1/models, /v1/chat/completions, /v1/completions, /tokenize, /detokenize and "
        "/tokenizer_info, each also below /jobs/JOB, /v1/files and /v1/fine_tuning/jobs");
  }
  const bool removes = of_models && door_.deletes() && route.job.empty();
  if (is_post ? !door_.posts() : !door_.gets() && !removes) {
    return absl::UnimplementedError(
        fmt::format("{} is asked with {}", route.page, is_post ? "POST" : "GET"));
  }
  // Before a byte of the body is read: who it is.
  SFT_ASSIGN_OR_RETURN(
      served_, door_.CallOnce<v1::ListServedModelsResponse>("ServingService.ListServedModels",
                                                            v1::ListServedModelsRequest()));
  if (of_models) return Models(route);
  if (route.page == "/tokenizer_info") return Tokenizer(route);
  if (route.page == "/tokenize") return Tokenize(route);
  if (route.page == "/detokenize") return Detokenize(route);
  return Complete(route, route.page == "/v1/chat/completions");
}

absl::StatusOr<openai::Model> OpenAiCall::Choose(const std::string& model,
                                                 const Route& route) const {
  return openai::ChooseModel(served_, model, route.job);
}

absl::Status OpenAiCall::Models(const Route& route) {
  v1::ListServedModelsResponse served;
  for (const v1::ServedModel& each : served_.models()) {
    if (route.job.empty() || each.name().ends_with("/" + route.job)) *served.add_models() = each;
  }
  if (route.page == kModels) {
    std::vector<openai::Json> models = openai::ServedModels(served);
    if (route.job.empty()) SFT_RETURN_IF_ERROR(TunedModels(door_).AddTo(models));
    return door_.Respond(openai::ModelList(std::move(models)));
  }
  const std::string model = DecodedPath(std::string_view(route.page).substr(kModels.size() + 1));
  if (route.job.empty() && openai::JobOfModelName(model).has_value()) {
    asks_ = openai::Asks::kTraining;
    return door_.deletes() ? TunedModels(door_).Delete(model) : TunedModels(door_).Get(model);
  }
  if (door_.deletes()) {
    return openai::NoModel(
        "what a job has trained is deleted, by a name that begins with \"ft:\"; cancel a job that "
        "serves");
  }
  SFT_ASSIGN_OR_RETURN(std::string page, openai::ModelPage(served, model));
  return door_.Respond(std::move(page));
}

absl::Status OpenAiCall::Complete(const Route& route, bool chat) {
  SFT_ASSIGN_OR_RETURN(const std::string body, door_.Body());
  SFT_ASSIGN_OR_RETURN(openai::Asked asked, door_.parsers.Run([&] {
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
  const absl::Status status = door_.Call("ServingService.Complete", asked.request, take);
  if (!failed.ok()) return failed;
  // What the job's process refuses is the prompt; of its base, it may be the base.
  if (!asked.request.base()) {
    SFT_RETURN_IF_ERROR(openai::InParam(asked.chat ? "messages" : "prompt", status));
  }
  SFT_RETURN_IF_ERROR(status);
  if (!asked.stream) return door_.Respond(answer.Whole());
  std::string last;
  for (const std::string& event : answer.LastEvents()) last += EventOf(event);
  (void)(http_.Write(last) && http_.End());
  return absl::OkStatus();
}

absl::Status OpenAiCall::Tokenize(const Route& route) {
  SFT_ASSIGN_OR_RETURN(const std::string body, door_.Body());
  SFT_ASSIGN_OR_RETURN(auto asked, door_.parsers.Run([&] { return openai::ReadTokenize(body); }));
  SFT_ASSIGN_OR_RETURN(const openai::Model model, Choose(asked.model, route));
  asked.request.set_name(model.job);
  SFT_ASSIGN_OR_RETURN(const auto answer, door_.CallOnce<v1::TokenizeResponse>(
                                              "ServingService.Tokenize", asked.request));
  return door_.Respond(openai::TokenizeJson(answer));
}

absl::Status OpenAiCall::Detokenize(const Route& route) {
  SFT_ASSIGN_OR_RETURN(const std::string body, door_.Body());
  SFT_ASSIGN_OR_RETURN(auto asked, door_.parsers.Run([&] { return openai::ReadDetokenize(body); }));
  SFT_ASSIGN_OR_RETURN(const openai::Model model, Choose(asked.model, route));
  asked.request.set_name(model.job);
  SFT_ASSIGN_OR_RETURN(const auto answer, door_.CallOnce<v1::DetokenizeResponse>(
                                              "ServingService.Detokenize", asked.request));
  return door_.Respond(openai::DetokenizeJson(answer));
}

absl::Status OpenAiCall::Tokenizer(const Route& route) {
  SFT_ASSIGN_OR_RETURN(const openai::Model model, Choose("", route));
  v1::GetTokenizerRequest request;
  request.set_name(model.job);
  SFT_ASSIGN_OR_RETURN(const auto answer,
                       door_.CallOnce<v1::ServedTokenizer>("ServingService.GetTokenizer", request));
  return door_.Respond(openai::TokenizerJson(answer));
}

}  // namespace sft::server
