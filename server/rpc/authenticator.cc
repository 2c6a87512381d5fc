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
    // What the peer asks for, where it is one of ours.
    const Method* const method = methods_.Find(MethodOf(ValueOf(metadata, ":path")));
    if (method != nullptr && method->rule.caller == Caller::kAnybody) return grpc::Status::OK;
    CallOrigin origin;
    origin.certificate_pem = CertificateOf(*context);
    origin.authorization = ValueOf(metadata, "authorization");
    const auto principal = gate_.Authenticate(origin);
    if (!principal.ok()) Tell(method, principal.status());
    return rpc::ToGrpc(principal.status());
  }

 private:
  void Tell(const Method* method, const absl::Status& refused) {
    gate_.failed().Count(
        {.principal = CallContext::kNobody,
         .method = method == nullptr ? FailedCalls::kOtherCalls : method->rule.method,
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
