#include "server/rpc/auth_service.h"

#include <fmt/format.h>

#include "common/rpc/status.h"
#include "server/core/convert.h"
#include "server/rpc/page_token.h"
#include "server/rpc/principal.h"
#include "server/state/names.h"
#include "server/store/audit.h"
#include "server/store/jobs.h"

namespace sft::server {
namespace {

constexpr int64_t kJoinLifeSeconds = 24 * 3600;
constexpr int64_t kMaxLifeSeconds = int64_t{20} * 365 * 24 * 3600;
constexpr int kMaxUses = 10'000;
constexpr size_t kMaxComment = 200;

v1::User ToProto(const UserRecord& user) {
  v1::User proto;
  proto.set_name(user.name);
  proto.set_admin(user.admin);
  for (const auto& [project, role] : user.roles) {
    v1::ProjectRole& added = *proto.add_roles();
    added.set_project(project);
    added.set_role(static_cast<v1::Role>(role));
  }
  return proto;
}

v1::Token ToProto(const TokenRecord& token) {
  v1::Token proto;
  proto.set_id(token.id);
  proto.set_kind(static_cast<v1::Token::Kind>(token.kind));
  proto.set_user(token.user);
  proto.set_node(token.node);
  proto.set_comment(token.comment);
  proto.set_created_by(token.created_by);
  *proto.mutable_create_time() = ToTimestamp(token.created_us);
  if (token.expires_us > 0) *proto.mutable_expire_time() = ToTimestamp(token.expires_us);
  if (token.revoked_us > 0) *proto.mutable_revoke_time() = ToTimestamp(token.revoked_us);
  proto.set_max_uses(token.max_uses);
  proto.set_uses(token.uses);
  return proto;
}

v1::Token ToProto(const NodeKeyRecord& key) {
  v1::Token proto;
  proto.set_id(NodeName(key.node));
  proto.set_kind(v1::Token::NODE);
  proto.set_node(key.node);
  proto.set_created_by(key.token.empty() ? "" : "join token " + key.token);
  *proto.mutable_create_time() = ToTimestamp(key.joined_us);
  *proto.mutable_expire_time() = ToTimestamp(key.expires_us);
  if (key.revoked_us > 0) *proto.mutable_revoke_time() = ToTimestamp(key.revoked_us);
  return proto;
}

v1::AuditRecord ToProto(const AuditRecord& record) {
  v1::AuditRecord proto;
  proto.set_sequence(record.sequence);
  proto.set_calls(record.calls);
  *proto.mutable_time() = ToTimestamp(record.time_us);
  proto.set_principal(record.principal);
  proto.set_token_id(record.token);
  proto.set_peer(record.peer);
  proto.set_method(record.method);
  proto.set_object(record.object);
  const std::string code = absl::StatusCodeToString(static_cast<absl::StatusCode>(record.outcome));
  proto.set_outcome(code.empty() ? std::to_string(record.outcome) : code);
  return proto;
}

int64_t Micros(const google::protobuf::Timestamp& time) {
  return time.seconds() * 1'000'000 + time.nanos() / 1000;
}

// Rows [offset, offset + size) of what is in memory as a whole.
template <typename Record, typename Add>
grpc::Status OnePage(const std::vector<Record>& all, int32_t page_size,
                     const std::string& page_token, std::string* next, const Add& add) {
  const absl::StatusOr<int> size = PageSize(page_size, store::kMaxPage);
  if (!size.ok()) return rpc::ToGrpc(size.status());
  const absl::StatusOr<int64_t> offset = FromToken(page_token);
  if (!offset.ok()) return rpc::ToGrpc(offset.status());
  const int64_t count = static_cast<int64_t>(all.size());
  const int64_t begin = std::min(*offset, count), end = std::min(count, begin + *size);
  for (int64_t i = begin; i < end; ++i) add(all[static_cast<size_t>(i)]);
  if (end < count) *next = ToToken(end);
  return grpc::Status::OK;
}

absl::Status CheckTokenRequest(const v1::CreateTokenRequest& request) {
  if (request.kind() != v1::Token::USER && request.kind() != v1::Token::JOIN) {
    return InvalidArgument("a token is of a user, or to join nodes");
  }
  if (request.lifetime_seconds() < 0 || request.lifetime_seconds() > kMaxLifeSeconds) {
    return InvalidArgument("a token's life is up to 20 years, or 0 for one without an end");
  }
  if (request.max_uses() < 0 || request.max_uses() > kMaxUses) {
    return InvalidArgument(fmt::format("a join token is good for 1 to {} nodes", kMaxUses));
  }
  if (request.comment().size() > kMaxComment) {
    return InvalidArgument(fmt::format("a comment has at most {} bytes", kMaxComment));
  }
  return absl::OkStatus();
}

}  // namespace

grpc::Status AuthServiceImpl::WhoAmI(grpc::ServerContext* context, const v1::WhoAmIRequest* request,
                                     v1::Identity* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  const Principal& caller = CallerOf(*context);
  *response->mutable_user() = ToProto(UserRecord{caller.Title(), caller.admin, caller.roles});
  response->set_token_id(caller.token);
  if (caller.expires_us > 0) *response->mutable_expire_time() = ToTimestamp(caller.expires_us);
  *response->mutable_server_time() = ToTimestamp(access_.now_us());
  return grpc::Status::OK;
}

grpc::Status AuthServiceImpl::Join(grpc::ServerContext* context, const v1::JoinRequest* request,
                                   v1::JoinResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  if (const absl::Status clock = access_.CheckClock(Micros(request->time())); !clock.ok()) {
    return rpc::WithReason(clock, "CLOCKS_APART");
  }
  const auto certificate =
      access_.Join(CallerOf(*context), request->node(), request->certificate_request_pem());
  if (!certificate.ok()) return rpc::ToGrpc(certificate.status());
  response->set_certificate_pem(*certificate);
  response->set_authority_pem(access_.AuthorityPem().value_or(""));
  *response->mutable_server_time() = ToTimestamp(access_.now_us());
  return grpc::Status::OK;
}

grpc::Status AuthServiceImpl::RenewCertificate(grpc::ServerContext* context,
                                               const v1::RenewCertificateRequest* request,
                                               v1::JoinResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  const auto certificate = access_.Renew(CallerOf(*context), request->certificate_request_pem());
  if (!certificate.ok()) return rpc::ToGrpc(certificate.status());
  response->set_certificate_pem(*certificate);
  response->set_authority_pem(access_.AuthorityPem().value_or(""));
  *response->mutable_server_time() = ToTimestamp(access_.now_us());
  return grpc::Status::OK;
}

grpc::Status AuthServiceImpl::CreateToken(grpc::ServerContext* context,
                                          const v1::CreateTokenRequest* request,
                                          v1::CreateTokenResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  if (const absl::Status fine = CheckTokenRequest(*request); !fine.ok()) return rpc::ToGrpc(fine);
  const bool join = request->kind() == v1::Token::JOIN;
  TokenRecord token;
  token.kind = join ? TokenKind::kJoin : TokenKind::kUser;
  if (!join) token.user = request->user();
  if (join) token.node = request->node();
  token.comment = request->comment();
  token.created_by = PrincipalOf(*context);
  int64_t seconds = request->lifetime_seconds();
  if (join && seconds == 0) seconds = kJoinLifeSeconds;
  if (seconds > 0) token.expires_us = access_.now_us() + seconds * 1'000'000;
  if (join) token.max_uses = std::max(1, request->max_uses());
  const absl::StatusOr<std::string> secret = access_.CreateToken(token);
  if (!secret.ok()) return rpc::ToGrpc(secret.status());
  *response->mutable_token() = ToProto(token);
  response->set_secret(*secret);
  return grpc::Status::OK;
}

grpc::Status AuthServiceImpl::ListTokens(grpc::ServerContext* context,
                                         const v1::ListTokensRequest* request,
                                         v1::ListTokensResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  std::vector<v1::Token> all;
  for (const TokenRecord& token : access_.Tokens()) all.push_back(ToProto(token));
  for (const NodeKeyRecord& key : access_.NodeKeys()) all.push_back(ToProto(key));
  return OnePage(all, request->page_size(), request->page_token(),
                 response->mutable_next_page_token(),
                 [&](const v1::Token& token) { *response->add_tokens() = token; });
}

grpc::Status AuthServiceImpl::RevokeToken(grpc::ServerContext* context,
                                          const v1::RevokeTokenRequest* request,
                                          v1::Token* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  if (const absl::Status done = access_.Revoke(request->id()); !done.ok()) return rpc::ToGrpc(done);
  for (const TokenRecord& token : access_.Tokens()) {
    if (token.id == request->id()) *response = ToProto(token);
  }
  for (const NodeKeyRecord& key : access_.NodeKeys()) {
    if (NodeName(key.node) != request->id()) continue;
    *response = ToProto(key);
    registry_.Close(key.node, absl::UnauthenticatedError("the node's certificate was revoked"));
  }
  return grpc::Status::OK;
}

grpc::Status AuthServiceImpl::PutUser(grpc::ServerContext* context,
                                      const v1::PutUserRequest* request, v1::User* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  AuditScope::SetObject("users/" + request->user().name().substr(0, 80));
  UserRecord user{request->user().name(), request->user().admin(), {}};
  for (const v1::ProjectRole& role : request->user().roles()) {
    user.roles[role.project()] = static_cast<Role>(role.role());
  }
  if (const absl::Status done = access_.PutUser(user); !done.ok()) return rpc::ToGrpc(done);
  *response = ToProto(user);
  return grpc::Status::OK;
}

grpc::Status AuthServiceImpl::ListUsers(grpc::ServerContext* context,
                                        const v1::ListUsersRequest* request,
                                        v1::ListUsersResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  return OnePage(access_.Users(), request->page_size(), request->page_token(),
                 response->mutable_next_page_token(),
                 [&](const UserRecord& user) { *response->add_users() = ToProto(user); });
}

grpc::Status AuthServiceImpl::RemoveUser(grpc::ServerContext* context,
                                         const v1::RemoveUserRequest* request, v1::User* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  const absl::Status done = access_.RemoveUser(request->user());
  if (!done.ok()) return rpc::ToGrpc(done);
  response->set_name(request->user());
  return grpc::Status::OK;
}

grpc::Status AuthServiceImpl::ListAuditRecords(grpc::ServerContext* context,
                                               const v1::ListAuditRecordsRequest* request,
                                               v1::ListAuditRecordsResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  const absl::StatusOr<int> size = PageSize(request->page_size(), store::kMaxPage);
  if (!size.ok()) return rpc::ToGrpc(size.status());
  const absl::StatusOr<int64_t> before = FromToken(request->page_token());
  if (!before.ok()) return rpc::ToGrpc(before.status());
  store::AuditFilter filter;
  filter.limit = *size;
  filter.before_sequence = *before;
  filter.principal = request->principal();
  if (request->has_since()) filter.since_us = Micros(request->since());
  std::vector<AuditRecord> records;
  if (const absl::Status counted = failed_.Flush(); !counted.ok()) return rpc::ToGrpc(counted);
  const absl::Status read = store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(records, store::ListAudit(db, filter));
    return absl::OkStatus();
  });
  if (!read.ok()) return rpc::ToGrpc(read);
  if (static_cast<int>(records.size()) == *size) {
    response->set_next_page_token(ToToken(records.back().sequence));
  }
  for (const AuditRecord& record : records) *response->add_records() = ToProto(record);
  return grpc::Status::OK;
}

}  // namespace sft::server
