#include "server/rpc/principal.h"

namespace sft::server {
namespace {

constexpr char kKey[] = "sft-principal";

class Interceptor : public grpc::experimental::Interceptor {
 public:
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Point::POST_RECV_INITIAL_METADATA)) {
      auto* metadata = methods->GetRecvInitialMetadata();
      metadata->erase(kKey);
      metadata->emplace(kKey, kLocalPrincipal);
    }
    methods->Proceed();
  }
};

class Factory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  // The library deletes what this returns.
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo*) override {
    return std::make_unique<Interceptor>().release();
  }
};

}  // namespace

std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
PrincipalInterceptors() {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
  creators.push_back(std::make_unique<Factory>());
  return creators;
}

std::string PrincipalOf(const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kKey);
  if (found == metadata.end()) return "";
  return std::string(found->second.data(), found->second.size());
}

grpc::Status CheckPrincipal(const grpc::ServerContextBase& context) {
  if (!PrincipalOf(context).empty()) return grpc::Status::OK;
  return {grpc::StatusCode::UNAUTHENTICATED, "the call has no principal"};
}

}  // namespace sft::server
