#include "server/rpc/library_calls.h"

#include "server/calls/grpc_methods.h"
#include "server/door/call_context.h"

namespace sft::server {
namespace {

using grpc::experimental::ServerRpcInfo;

// HealthService limits its streams itself.
constexpr std::string_view kHealth = "/grpc.health.v1.Health/";
constexpr char kOfLibrary[] = "methods of the library";

class Watch final : public grpc::experimental::Interceptor {
 public:
  Watch(Gate& gate, ServerRpcInfo& info)
      : gate_(gate), context_(info.server_context()), method_(info.method()) {
    counts_ = info.type() != ServerRpcInfo::Type::UNARY && !method_.starts_with(kHealth);
  }
  ~Watch() override {
    if (counted_) gate_.EndStream(kOfLibrary, kOfLibrary);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (counts_ && methods->QueryInterceptionHookPoint(Point::POST_RECV_INITIAL_METADATA)) {
      counted_ = gate_.BeginStream(kOfLibrary, Gate::kMaxStreamsOfLibrary, kOfLibrary).ok();
      if (!counted_) context_->TryCancel();
    }
    if (methods->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS)) {
      Record(methods->GetSendStatus());
    }
    methods->Proceed();
  }

 private:
  void Record(const grpc::Status& status) {
    if (status.ok() || status.error_code() == grpc::StatusCode::CANCELLED) return;
    gate_.failed().Count({.time_us = gate_.now_us(),
                          .principal = CallContext::kNobody,
                          .peer = context_->peer(),
                          .method = method_,
                          .outcome = static_cast<int>(status.error_code())});
  }

  Gate& gate_;
  grpc::ServerContextBase* const context_;
  const std::string method_;
  bool counts_ = false, counted_ = false;
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(Gate& gate) : gate_(gate) {}
  // The library deletes what this returns.
  grpc::experimental::Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    if (!MethodOf(info->method()).empty()) return nullptr;
    return std::make_unique<Watch>(gate_, *info).release();
  }

 private:
  Gate& gate_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
WatchLibraryCalls(Gate& gate) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
  creators.push_back(std::make_unique<Factory>(gate));
  return creators;
}

}  // namespace sft::server
