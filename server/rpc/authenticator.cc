#include "server/rpc/authenticator.h"

#include <spdlog/spdlog.h>

#include "common/rpc/status.h"
#include "server/rpc/grpc_methods.h"

namespace sft::server {
namespace {

template <typename Metadata>
std::string_view ViewOf(const Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return {};
  return {found->second.data(), found->second.size()};
}

class Authenticator final : public grpc::AuthMetadataProcessor {
 public:
  Authenticator(Gate& gate, const Methods& methods) : gate_(gate), methods_(methods) {}
  bool IsBlocking() const override { return false; }  // all of it is in memory
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const auto certificates = context->FindPropertyValues("x509_pem_cert");
    const std::string certificate = certificates.empty() ? ""
                                                         : std::string(certificates.front().data(),
                                                                       certificates.front().size());
    const auto principal = gate_.Authenticate(certificate, ViewOf(metadata, "authorization"));
    if (!principal.ok()) Tell(metadata, principal.status());
    return rpc::ToGrpc(principal.status());
  }

 private:
  void Tell(const InputMetadata& metadata, const absl::Status& refused) {
    // What the peer asks for, where it is one of ours.
    const std::string method = MethodOf(ViewOf(metadata, ":path"));
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
