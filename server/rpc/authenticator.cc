#include "server/rpc/authenticator.h"

#include <spdlog/spdlog.h>

#include "common/rpc/status.h"
#include "server/calls/grpc_methods.h"

namespace sft::server {
namespace {

class Authenticator final : public grpc::AuthMetadataProcessor {
 public:
  Authenticator(Gate& gate, const Methods& methods) : gate_(gate), methods_(methods) {}
  bool IsBlocking() const override { return false; }  // all of it is in memory
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    CallOrigin origin;
    origin.certificate_pem = CertificateOf(*context);
    origin.authorization = ValueOf(metadata, "authorization");
    const auto principal = gate_.Authenticate(origin);
    if (!principal.ok()) Tell(metadata, principal.status());
    return rpc::ToGrpc(principal.status());
  }

 private:
  void Tell(const InputMetadata& metadata, const absl::Status& refused) {
    // What the peer asks for, where it is one of ours.
    const std::string method = MethodOf(ValueOf(metadata, ":path"));
    gate_.failed().Count(
        {.principal = CallContext::kNobody,
         .method = methods_.Find(method) == nullptr ? FailedCalls::kOtherCalls : method,
         .outcome = static_cast<int>(refused.code())});
    if (gate_.IsNews(std::string(Message(refused)))) {
      spdlog::warn("a call was refused: {}", Message(refused));
    }
  }

  Gate& gate_;
  const Methods& methods_;
};

}  // namespace

std::shared_ptr<grpc::AuthMetadataProcessor> MakeAuthenticator(Gate& gate, const Methods& methods) {
  return std::make_shared<Authenticator>(gate, methods);
}

}  // namespace sft::server
