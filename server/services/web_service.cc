#include "server/services/web_service.h"

#include "server/core/convert.h"

namespace sft::server {

void WebService::AddTo(Methods& methods) {
  methods.Unary({"WebService.CreateCode", Caller::kUser, Role::kViewer, Place::kAny}, this,
                &WebService::CreateCode);
}

absl::StatusOr<v1::WebCode> WebService::CreateCode(CallContext& call,
                                                   const v1::CreateCodeRequest&) {
  const std::string url = sessions_.url();
  if (url.empty()) {
    return FailedPrecondition(
        "the web page of this server is off: its operator switches it on with --http HOST:PORT "
        "(docs/operations.md)");
  }
  v1::WebCode response;
  response.set_url(url);
  if (call.caller().local) return response;
  response.set_code(sessions_.MakeCode(call.caller().token));
  constexpr int64_t kLifeUs = std::chrono::microseconds(WebSessions::kCodeLife).count();
  *response.mutable_expire_time() = ToTimestamp(UnixMicros(clock_.Wall()) + kLifeUs);
  return response;
}

}  // namespace sft::server
