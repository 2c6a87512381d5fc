#include "server/services/serving_service.h"

namespace sft::server {

void ServingService::AddTo(Methods& methods) {
  using enum Caller;
  using enum Role;
  using enum Place;
  using Self = ServingService;
  methods.Unary({"ServingService.ListServedModels", kUser, kViewer, kOwn}, this,
                &Self::ListServedModels);
  methods.ServerStream({"ServingService.Complete", kUser, kSubmitter, kNamed}, this,
                       &Self::Complete);
  // These wait for the job's process, as answers do.
  const auto waits = [](std::string method) {
    return Rule{std::move(method), kUser, kSubmitter, kNamed, Audit::kNone, /*waits=*/true};
  };
  methods.Unary(waits("ServingService.Tokenize"), this, &Self::Tokenize);
  methods.Unary(waits("ServingService.Detokenize"), this, &Self::Detokenize);
  methods.Unary(waits("ServingService.GetTokenizer"), this, &Self::GetTokenizer);
}

absl::StatusOr<v1::ListServedModelsResponse> ServingService::ListServedModels(
    CallContext& call, const v1::ListServedModelsRequest&) {
  SFT_ASSIGN_OR_RETURN(std::vector<v1::ServedModel> models, serving_.List(call.Visible()));
  v1::ListServedModelsResponse response;
  for (v1::ServedModel& model : models) *response.add_models() = std::move(model);
  const MutexLock lock(mutex_);
  response.set_base_url(base_url_);
  return response;
}

absl::Status ServingService::Complete(CallContext&, const v1::CompleteRequest& request,
                                      Sink<v1::CompleteResponse>& sink) {
  return serving_.Complete(
      request, [&](const v1::CompleteResponse& piece) { return sink.Write(piece); },
      [&] { return sink.Gone(); });
}

absl::StatusOr<v1::TokenizeResponse> ServingService::Tokenize(CallContext&,
                                                              const v1::TokenizeRequest& request) {
  return serving_.Tokenize(request);
}

absl::StatusOr<v1::DetokenizeResponse> ServingService::Detokenize(
    CallContext&, const v1::DetokenizeRequest& request) {
  return serving_.Detokenize(request);
}

absl::StatusOr<v1::ServedTokenizer> ServingService::GetTokenizer(
    CallContext&, const v1::GetTokenizerRequest& request) {
  return serving_.Tokenizer(request);
}

}  // namespace sft::server
