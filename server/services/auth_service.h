#pragma once

#include "server/core/access.h"
#include "server/core/failed_calls.h"
#include "server/door/methods.h"
#include "server/fleet/worker_registry.h"
#include "server/store/store.h"
#include "sft/v1/auth_service.pb.h"

namespace sft::server {

v1::Token ToProto(const TokenRecord& token);

// AuthService: users, tokens, nodes' certificates and the audit.
class AuthService final {
 public:
  AuthService(Access& access, Store& store, WorkerRegistry& registry, FailedCalls& failed)
      : access_(access), store_(store), registry_(registry), failed_(failed) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::StatusOr<v1::Identity> WhoAmI(CallContext& call, const v1::WhoAmIRequest& request);
  absl::StatusOr<v1::JoinResponse> Join(CallContext& call, const v1::JoinRequest& request);
  absl::StatusOr<v1::JoinResponse> RenewCertificate(CallContext& call,
                                                    const v1::RenewCertificateRequest& request);
  absl::StatusOr<v1::CreateTokenResponse> CreateToken(CallContext& call,
                                                      const v1::CreateTokenRequest& request);
  absl::StatusOr<v1::ListTokensResponse> ListTokens(CallContext& call,
                                                    const v1::ListTokensRequest& request);
  absl::StatusOr<v1::Token> RevokeToken(CallContext& call, const v1::RevokeTokenRequest& request);
  absl::StatusOr<v1::User> PutUser(CallContext& call, const v1::PutUserRequest& request);
  absl::StatusOr<v1::ListUsersResponse> ListUsers(CallContext& call,
                                                  const v1::ListUsersRequest& request);
  absl::StatusOr<v1::User> RemoveUser(CallContext& call, const v1::RemoveUserRequest& request);
  absl::StatusOr<v1::ListAuditRecordsResponse> ListAuditRecords(
      CallContext& call, const v1::ListAuditRecordsRequest& request);

 private:
  v1::JoinResponse Joined(const std::string& certificate_pem) const;

  Access& access_;
  Store& store_;
  WorkerRegistry& registry_;
  FailedCalls& failed_;
};

}  // namespace sft::server
