#pragma once

#include "server/core/access.h"
#include "server/core/failed_calls.h"
#include "server/core/worker_registry.h"
#include "server/store/store.h"
#include "sft/v1/auth_service.grpc.pb.h"

namespace sft::server {

// AuthService: users, tokens, nodes' certificates and the audit.
class AuthServiceImpl final : public v1::AuthService::Service {
 public:
  AuthServiceImpl(Access& access, Store& store, WorkerRegistry& registry, FailedCalls& failed)
      : access_(access), store_(store), registry_(registry), failed_(failed) {}

  grpc::Status WhoAmI(grpc::ServerContext* context, const v1::WhoAmIRequest* request,
                      v1::Identity* response) override;
  grpc::Status Join(grpc::ServerContext* context, const v1::JoinRequest* request,
                    v1::JoinResponse* response) override;
  grpc::Status RenewCertificate(grpc::ServerContext* context,
                                const v1::RenewCertificateRequest* request,
                                v1::JoinResponse* response) override;
  grpc::Status CreateToken(grpc::ServerContext* context, const v1::CreateTokenRequest* request,
                           v1::CreateTokenResponse* response) override;
  grpc::Status ListTokens(grpc::ServerContext* context, const v1::ListTokensRequest* request,
                          v1::ListTokensResponse* response) override;
  grpc::Status RevokeToken(grpc::ServerContext* context, const v1::RevokeTokenRequest* request,
                           v1::Token* response) override;
  grpc::Status PutUser(grpc::ServerContext* context, const v1::PutUserRequest* request,
                       v1::User* response) override;
  grpc::Status ListUsers(grpc::ServerContext* context, const v1::ListUsersRequest* request,
                         v1::ListUsersResponse* response) override;
  grpc::Status RemoveUser(grpc::ServerContext* context, const v1::RemoveUserRequest* request,
                          v1::User* response) override;
  grpc::Status ListAuditRecords(grpc::ServerContext* context,
                                const v1::ListAuditRecordsRequest* request,
                                v1::ListAuditRecordsResponse* response) override;

 private:
  Access& access_;
  Store& store_;
  WorkerRegistry& registry_;
  FailedCalls& failed_;
};

}  // namespace sft::server
