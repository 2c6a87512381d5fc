#include "server/services/auth_service.h"

#include <fmt/format.h>

#include "common/rpc/status.h"
#include "server/core/convert.h"
#include "server/door/page_token.h"
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
  if (!user.issuer.empty()) proto.set_identity(user.issuer + " " + user.subject);
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

// Rows [offset, offset + size) of what is in memory as a whole, and the token of the next ones.
template <typename Record, typename Add>
absl::StatusOr<std::string> OnePage(const std::vector<Record>& all, int32_t page_size,
                                    const std::string& page_token, const Add& add) {
  SFT_ASSIGN_OR_RETURN(const int size, PageSize(page_size, store::kMaxPage));
  SFT_ASSIGN_OR_RETURN(const int64_t offset, FromToken(page_token));
  const int64_t count = static_cast<int64_t>(all.size());
  const int64_t begin = std::min(offset, count), end = std::min(count, begin + size);
  for (int64_t i = begin; i < end; ++i) add(all[static_cast<size_t>(i)]);
  return end < count ? ToToken(end) : std::string();
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

void AuthService::AddTo(Methods& methods) {
  const auto admin = [](std::string method, Audit audit) {
    return Rule{std::move(method), Caller::kUser, Role::kAdmin, Place::kServer, audit};
  };
  constexpr Audit kChange = Audit::kChange;
  using Self = AuthService;
  methods.Unary({"AuthService.WhoAmI", Caller::kEither, Role::kNone, Place::kAny}, this,
                &Self::WhoAmI);
  methods.Unary({"AuthService.Join", Caller::kJoiner, Role::kNone, Place::kServer, kChange}, this,
                &Self::Join);
  methods.Unary(
      {"AuthService.RenewCertificate", Caller::kNode, Role::kNone, Place::kServer, kChange}, this,
      &Self::RenewCertificate);
  methods.Unary(admin("AuthService.CreateToken", kChange), this, &Self::CreateToken);
  methods.Unary(admin("AuthService.ListTokens", Audit::kNone), this, &Self::ListTokens);
  methods.Unary(admin("AuthService.RevokeToken", kChange), this, &Self::RevokeToken);
  methods.Unary(admin("AuthService.PutUser", kChange), this, &Self::PutUser);
  methods.Unary(admin("AuthService.ListUsers", Audit::kNone), this, &Self::ListUsers);
  methods.Unary(admin("AuthService.RemoveUser", kChange), this, &Self::RemoveUser);
  methods.Unary(admin("AuthService.ListAuditRecords", Audit::kNone), this, &Self::ListAuditRecords);
}

absl::StatusOr<v1::Identity> AuthService::WhoAmI(CallContext& call, const v1::WhoAmIRequest&) {
  const Principal& caller = call.caller();
  v1::Identity response;
  *response.mutable_user() = ToProto(UserRecord{caller.Title(), caller.admin, caller.roles});
  response.set_token_id(caller.token);
  if (caller.expires_us > 0) *response.mutable_expire_time() = ToTimestamp(caller.expires_us);
  *response.mutable_server_time() = ToTimestamp(access_.now_us());
  return response;
}

v1::JoinResponse AuthService::Joined(const std::string& certificate_pem) const {
  v1::JoinResponse response;
  response.set_certificate_pem(certificate_pem);
  response.set_authority_pem(access_.AuthorityPem().value_or(""));
  *response.mutable_server_time() = ToTimestamp(access_.now_us());
  return response;
}

absl::StatusOr<v1::JoinResponse> AuthService::Join(CallContext& call,
                                                   const v1::JoinRequest& request) {
  if (const absl::Status clock = access_.CheckClock(Micros(request.time())); !clock.ok()) {
    return rpc::WithReason(clock, "CLOCKS_APART");
  }
  SFT_ASSIGN_OR_RETURN(
      const std::string certificate,
      access_.Join(call.caller(), request.node(), request.certificate_request_pem(), call.actor()));
  return Joined(certificate);
}

absl::StatusOr<v1::JoinResponse> AuthService::RenewCertificate(
    CallContext& call, const v1::RenewCertificateRequest& request) {
  SFT_ASSIGN_OR_RETURN(
      const std::string certificate,
      access_.Renew(call.caller(), request.certificate_request_pem(), call.actor()));
  return Joined(certificate);
}

absl::StatusOr<v1::CreateTokenResponse> AuthService::CreateToken(
    CallContext& call, const v1::CreateTokenRequest& request) {
  SFT_RETURN_IF_ERROR(CheckTokenRequest(request));
  const bool join = request.kind() == v1::Token::JOIN;
  TokenRecord token;
  token.kind = join ? TokenKind::kJoin : TokenKind::kUser;
  if (!join) token.user = request.user();
  if (join) token.node = request.node();
  token.comment = request.comment();
  token.created_by = call.caller().Title();
  int64_t seconds = request.lifetime_seconds();
  if (join && seconds == 0) seconds = kJoinLifeSeconds;
  if (seconds > 0) token.expires_us = access_.now_us() + seconds * 1'000'000;
  if (join) token.max_uses = std::max(1, request.max_uses());
  v1::CreateTokenResponse response;
  SFT_ASSIGN_OR_RETURN(*response.mutable_secret(), access_.CreateToken(token, call.actor()));
  *response.mutable_token() = ToProto(token);
  return response;
}

absl::StatusOr<v1::ListTokensResponse> AuthService::ListTokens(
    CallContext&, const v1::ListTokensRequest& request) {
  std::vector<v1::Token> all;
  for (const TokenRecord& token : access_.Tokens()) all.push_back(ToProto(token));
  for (const NodeKeyRecord& key : access_.NodeKeys()) all.push_back(ToProto(key));
  v1::ListTokensResponse response;
  SFT_ASSIGN_OR_RETURN(*response.mutable_next_page_token(),
                       OnePage(all, request.page_size(), request.page_token(),
                               [&](const v1::Token& token) { *response.add_tokens() = token; }));
  return response;
}

absl::StatusOr<v1::Token> AuthService::RevokeToken(CallContext& call,
                                                   const v1::RevokeTokenRequest& request) {
  SFT_RETURN_IF_ERROR(access_.Revoke(request.id(), call.actor()));
  v1::Token response;
  for (const TokenRecord& token : access_.Tokens()) {
    if (token.id == request.id()) response = ToProto(token);
  }
  for (const NodeKeyRecord& key : access_.NodeKeys()) {
    if (NodeName(key.node) != request.id()) continue;
    response = ToProto(key);
    registry_.Close(key.node, absl::UnauthenticatedError("the node's certificate was revoked"));
  }
  return response;
}

absl::StatusOr<v1::User> AuthService::PutUser(CallContext& call,
                                              const v1::PutUserRequest& request) {
  call.SetObject("users/" + request.user().name().substr(0, 80));
  UserRecord user{request.user().name(), request.user().admin(), {}};
  for (const v1::ProjectRole& role : request.user().roles()) {
    user.roles[role.project()] = static_cast<Role>(role.role());
  }
  SFT_RETURN_IF_ERROR(access_.PutUser(user, call.actor()));
  return ToProto(user);
}

absl::StatusOr<v1::ListUsersResponse> AuthService::ListUsers(CallContext&,
                                                             const v1::ListUsersRequest& request) {
  v1::ListUsersResponse response;
  SFT_ASSIGN_OR_RETURN(
      *response.mutable_next_page_token(),
      OnePage(access_.Users(), request.page_size(), request.page_token(),
              [&](const UserRecord& user) { *response.add_users() = ToProto(user); }));
  return response;
}

absl::StatusOr<v1::User> AuthService::RemoveUser(CallContext& call,
                                                 const v1::RemoveUserRequest& request) {
  SFT_RETURN_IF_ERROR(access_.RemoveUser(request.user(), call.actor()));
  v1::User response;
  response.set_name(request.user());
  return response;
}

absl::StatusOr<v1::ListAuditRecordsResponse> AuthService::ListAuditRecords(
    CallContext&, const v1::ListAuditRecordsRequest& request) {
  store::AuditFilter filter;
  SFT_ASSIGN_OR_RETURN(filter.limit, PageSize(request.page_size(), store::kMaxPage));
  SFT_ASSIGN_OR_RETURN(filter.before_sequence, FromToken(request.page_token()));
  filter.principal = request.principal();
  if (request.has_since()) filter.since_us = Micros(request.since());
  SFT_RETURN_IF_ERROR(failed_.Flush());
  std::vector<AuditRecord> records;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(records, store::ListAudit(db, filter));
    return absl::OkStatus();
  }));
  v1::ListAuditRecordsResponse response;
  if (static_cast<int>(records.size()) == filter.limit) {
    response.set_next_page_token(ToToken(records.back().sequence));
  }
  for (const AuditRecord& record : records) *response.add_records() = ToProto(record);
  return response;
}

}  // namespace sft::server
