#pragma once

#include "server/door/methods.h"
#include "server/door/web_sessions.h"
#include "sft/v1/web_service.pb.h"

namespace sft::server {

// WebService: the way of a user of sftctl to the web page.
class WebService final {
 public:
  WebService(WebSessions& sessions, Clock& clock) : sessions_(sessions), clock_(clock) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::StatusOr<v1::WebCode> CreateCode(CallContext& call, const v1::CreateCodeRequest& request);

 private:
  WebSessions& sessions_;
  Clock& clock_;
};

}  // namespace sft::server
