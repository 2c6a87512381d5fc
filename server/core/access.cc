#include "server/core/access.h"

#include <fmt/format.h>

#include "common/base/ids.h"
#include "common/io/sha256.h"
#include "server/state/names.h"
#include "server/store/access.h"
#include "server/store/webhooks.h"

namespace sft::server {
namespace {

constexpr int kIdLength = 8;
constexpr int kSecretLength = 52;  // characters of 5 bits each
constexpr size_t kMaxVerified = 4096;
// A peer whose clock is slow by less than this accepts a new certificate.
constexpr std::chrono::hours kBackdate{24};
// How long ended tokens are shown.
constexpr std::chrono::hours kKeepTokens{24 * 90};

absl::Status Unknown() {
  return absl::UnauthenticatedError(
      "this token is not known here: log in again (`sftctl login`), or ask an admin for a token");
}

absl::Status UnknownJoin() {
  return absl::UnauthenticatedError(
      "this join token is not known here: an admin makes another with `sftctl admin token create "
      "--join`");
}

std::string Time(int64_t us) { return FormatUtc(FromUnixMicros(us)); }

std::string HowToGetAnother(bool join, bool vouched) {
  if (vouched) return "log in again (`sftctl login --oidc`; a CI job exchanges another ID token)";
  return fmt::format("an admin makes another with `sftctl admin token create{}`",
                     join ? " --join" : "");
}

int64_t Micros(Nanos duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

// Whether the user may read of the project's jobs; of an empty one, of the whole server.
bool MayRead(const UserRecord& user, const std::string& project) {
  if (user.admin) return true;
  const auto role = user.roles.find(project);
  return role != user.roles.end() && role->second >= Role::kViewer;
}

// A webhook goes on without its maker. Only what this change takes away counts: one that somebody
// else has turned on since stays on.
absl::Status PutHooksOff(Database& db, const UserRecord& before, const UserRecord& after,
                         int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(std::vector<store::WebhookRecord> hooks,
                       store::ListWebhooks(db, std::nullopt));
  for (store::WebhookRecord& hook : hooks) {
    if (hook.created_by != before.name || hook.off_us > 0) continue;
    if (!MayRead(before, hook.project) || MayRead(after, hook.project)) continue;
    const std::string what = hook.project.empty() ? "the whole server" : "project " + hook.project;
    const std::string reason =
        after.name.empty()
            ? fmt::format("{}, who made it, was removed", before.name)
            : fmt::format("{}, who made it, may no longer read {}", before.name, what);
    SFT_RETURN_IF_ERROR(store::SwitchOff(db, hook, reason, now_us));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Access>> Access::Load(Store& store, Clock& clock,
                                                     std::optional<tls::Identity> authority) {
  std::unique_ptr<Access> access(new Access(store, clock, std::move(authority)));
  const int64_t old = access->now_us() - Micros(kKeepTokens);
  SFT_RETURN_IF_ERROR(store.Write([&](Database& db) { return store::DropOldTokens(db, old); }));
  SFT_RETURN_IF_ERROR(access->Reload());
  return access;
}

absl::Status Access::Reload() {
  std::vector<UserRecord> users;
  std::vector<TokenRecord> tokens;
  std::vector<NodeKeyRecord> keys;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(users, store::ListUsers(db));
    SFT_ASSIGN_OR_RETURN(tokens, store::ListTokens(db));
    SFT_ASSIGN_OR_RETURN(keys, store::ListNodeKeys(db));
    return absl::OkStatus();
  }));
  const MutexLock lock(mutex_);
  for (UserRecord& user : users) users_[user.name] = std::move(user);
  for (TokenRecord& token : tokens) tokens_[token.id] = std::move(token);
  for (NodeKeyRecord& key : keys) keys_[key.node] = std::move(key);
  return absl::OkStatus();
}

absl::StatusOr<Principal> Access::OfToken(std::string_view text) const {
  const std::optional<TokenText> given = ReadToken(text);
  if (!given.has_value()) return Unknown();
  const bool join = given->kind == TokenKind::kJoin;
  const std::string hash = io::Sha256Hex(given->secret);
  const MutexLock lock(mutex_);
  const auto found = tokens_.find(given->id);
  if (found == tokens_.end() || found->second.kind != given->kind ||
      !EqualSecrets(found->second.secret_sha256, hash)) {
    return join ? UnknownJoin() : Unknown();
  }
  return OfRecord(found->second);
}

absl::StatusOr<Principal> Access::OfSession(const std::string& token_id) const {
  const MutexLock lock(mutex_);
  const auto found = tokens_.find(token_id);
  if (found == tokens_.end() || found->second.kind != TokenKind::kUser) return Unknown();
  return OfRecord(found->second);
}

absl::StatusOr<Principal> Access::OfRecord(const TokenRecord& token) const {
  const bool join = token.kind == TokenKind::kJoin;
  if (token.revoked_us > 0) {
    return absl::UnauthenticatedError(
        fmt::format("token {} was revoked at {}", token.id, Time(token.revoked_us)));
  }
  const auto user = users_.find(token.user);
  if (token.expires_us > 0 && token.expires_us <= now_us()) {
    const bool vouched = user != users_.end() && !user->second.issuer.empty();
    return absl::UnauthenticatedError(
        fmt::format("{}token {} expired at {}: {}", join ? "join " : "", token.id,
                    Time(token.expires_us), HowToGetAnother(join, vouched)));
  }
  Principal principal;
  principal.token = token.id;
  principal.expires_us = token.expires_us;
  if (join) {
    principal.kind = Principal::Kind::kJoiner;
    principal.name = "join-token";
    return principal;
  }
  if (user == users_.end()) return Unknown();
  last_use_us_[token.id] = now_us();
  principal.kind = Principal::Kind::kUser;
  principal.name = token.user;
  principal.admin = user->second.admin;
  principal.roles = user->second.roles;
  return principal;
}

absl::StatusOr<Principal> Access::OfCertificate(const std::string& pem) const {
  if (!authority_.has_value()) return Unknown();
  const WallTime now = clock_.Wall();
  const MutexLock lock(mutex_);
  auto known = verified_.find(pem);
  if (known == verified_.end() || known->second.validity.to <= now) {
    const absl::Status good =
        tls::Verify(pem, authority_->certificate_pem, tls::Purpose::kNode, now);
    if (!good.ok()) {
      return Annotate(
          good,
          "this node's certificate (a new one: `sftctl admin token create --join`, then "
          "sft-worker --join-token-file)");
    }
    SFT_ASSIGN_OR_RETURN(tls::Certificate read, tls::ReadCertificate(pem));
    if (verified_.size() >= kMaxVerified) verified_.clear();
    known = verified_.insert_or_assign(pem, std::move(read)).first;
  }
  const tls::Certificate& certificate = known->second;
  const auto key = keys_.find(certificate.common_name);
  if (key == keys_.end() || key->second.key_sha256 != certificate.key_sha256) {
    return absl::UnauthenticatedError(fmt::format(
        "node {} has joined with another key since: stop this worker, or let it join anew under "
        "another --node",
        certificate.common_name));
  }
  if (key->second.revoked_us > 0) {
    return absl::UnauthenticatedError(fmt::format("the certificate of node {} was revoked at {}",
                                                  key->first, Time(key->second.revoked_us)));
  }
  Principal principal;
  principal.kind = Principal::Kind::kNode;
  principal.name = key->first;
  principal.expires_us = UnixMicros(certificate.validity.to);
  return principal;
}

std::vector<UserRecord> Access::Users() const {
  const MutexLock lock(mutex_);
  std::vector<UserRecord> users;
  for (const auto& [name, user] : users_) users.push_back(user);
  return users;
}

std::optional<UserRecord> Access::FindUser(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto found = users_.find(name);
  return found == users_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<TokenRecord> Access::Tokens() const {
  const MutexLock lock(mutex_);
  std::vector<TokenRecord> tokens;
  for (const auto& [id, token] : tokens_) tokens.push_back(token);
  return tokens;
}

std::optional<TokenRecord> Access::FindToken(const std::string& id) const {
  const MutexLock lock(mutex_);
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? std::nullopt : std::optional(found->second);
}

int64_t Access::LastUse(const std::string& token_id) const {
  const MutexLock lock(mutex_);
  const auto found = last_use_us_.find(token_id);
  return found == last_use_us_.end() ? 0 : found->second;
}

std::vector<NodeKeyRecord> Access::NodeKeys() const {
  const MutexLock lock(mutex_);
  std::vector<NodeKeyRecord> keys;
  for (const auto& [node, key] : keys_) keys.push_back(key);
  return keys;
}

UserRecord Access::Known(const std::string& name) const {
  return FindUser(name).value_or(UserRecord());
}

absl::Status Access::Put(const UserRecord& user, const Actor& actor, const Store::Function& with) {
  if (!IsValidLabel(user.name)) {
    return InvalidArgument(fmt::format("user \"{}\": letters, digits, '-', '_' and '.', at most 63",
                                       user.name.substr(0, 80)));
  }
  for (const auto& [project, role] : user.roles) {
    if (!IsValidLabel(project)) {
      return InvalidArgument(fmt::format("project \"{}\" is not a name", project.substr(0, 80)));
    }
    if (role != Role::kViewer && role != Role::kSubmitter) {
      return InvalidArgument("a role in a project is viewer or submitter");
    }
  }
  const int64_t now = now_us();
  const UserRecord before = Known(user.name);
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_RETURN_IF_ERROR(store::PutUser(db, user, now));
        SFT_RETURN_IF_ERROR(PutHooksOff(db, before, user, now));
        return with == nullptr ? absl::OkStatus() : with(db);
      },
      actor.audit));
  {
    const MutexLock lock(mutex_);
    users_[user.name] = user;
  }
  // A login changes nothing as a rule, and those who follow are many.
  if (before.admin != user.admin || before.roles != user.roles) rights_changed_(user.name);
  return absl::OkStatus();
}

absl::Status Access::PutUser(const UserRecord& user, const Actor& actor) {
  const MutexLock changing(changing_);
  const UserRecord before = Known(user.name);
  if (!before.issuer.empty()) {
    return FailedPrecondition(fmt::format(
        "the roles of {} are those that {} gives: change them there (docs/security.md, \"Company "
        "login\"); `sftctl admin user remove {}` ends its tokens",
        before.name, before.issuer == kCiIssuer ? "its rule of a CI" : before.issuer, before.name));
  }
  return Put(user, actor, nullptr);
}

absl::Status Access::RemoveUser(const std::string& name, const Actor& actor) {
  const MutexLock changing(changing_);
  const int64_t now = now_us();
  const UserRecord before = Known(name);
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_RETURN_IF_ERROR(store::RemoveUser(db, name, now));
        return PutHooksOff(db, before, {}, now);
      },
      actor.audit));
  {
    const MutexLock lock(mutex_);
    users_.erase(name);
    for (auto& [id, token] : tokens_) {
      if (token.kind == TokenKind::kUser && token.user == name && token.revoked_us == 0) {
        token.revoked_us = now;
      }
    }
  }
  rights_changed_(name);
  return absl::OkStatus();
}

TokenText Access::Fill(TokenRecord& token) const {
  TokenText text{token.kind, RandomId("", kIdLength), RandomId("", kSecretLength), ""};
  token.id = text.id;
  token.secret_sha256 = io::Sha256Hex(text.secret);
  token.created_us = now_us();
  return text;
}

absl::StatusOr<std::string> Access::CreateToken(TokenRecord& token, const Actor& actor) {
  const MutexLock changing(changing_);
  TokenText text = Fill(token);
  if (token.kind == TokenKind::kJoin) {
    SFT_ASSIGN_OR_RETURN(const std::string authority, AuthorityPem());
    SFT_ASSIGN_OR_RETURN(const tls::Certificate read, tls::ReadCertificate(authority));
    text.fingerprint = read.fingerprint;
    if (!token.node.empty() && !IsValidLabel(token.node)) {
      return InvalidArgument(fmt::format("node \"{}\" is not a name", token.node.substr(0, 80)));
    }
  } else {
    const MutexLock lock(mutex_);
    const auto user = users_.find(token.user);
    if (user == users_.end()) {
      return NotFound(fmt::format("no user \"{}\": make it first with `sftctl admin user set {}`",
                                  token.user.substr(0, 80), token.user.substr(0, 80)));
    }
    if (!user->second.issuer.empty()) {
      return FailedPrecondition(
          fmt::format("{} gets tokens by logging in (`sftctl login --oidc`), and none that would "
                      "outlive that; make a user for a program with `sftctl admin user set`",
                      token.user));
    }
  }
  SFT_RETURN_IF_ERROR(
      store_.Write([&](Database& db) { return store::InsertToken(db, token); }, actor.audit));
  const MutexLock lock(mutex_);
  tokens_[token.id] = token;
  return Write(text);
}

absl::Status Access::Revoke(const std::string& id, const Actor& actor) {
  const MutexLock changing(changing_);
  constexpr std::string_view kNodes = "nodes/";
  const int64_t now = now_us();
  if (!id.starts_with(kNodes)) {
    {
      const MutexLock lock(mutex_);
      if (!tokens_.contains(id)) {
        return NotFound(
            fmt::format("no token \"{}\": `sftctl admin token list` shows them", id.substr(0, 80)));
      }
    }
    SFT_RETURN_IF_ERROR(
        store_.Write([&](Database& db) { return store::RevokeToken(db, id, now); }, actor.audit));
    std::string user;
    {
      const MutexLock lock(mutex_);
      TokenRecord& token = tokens_[id];
      if (token.revoked_us == 0) token.revoked_us = now;
      user = token.user;
    }
    rights_changed_(user);
    return absl::OkStatus();
  }
  NodeKeyRecord key;
  {
    const MutexLock lock(mutex_);
    const auto found = keys_.find(id.substr(kNodes.size()));
    if (found == keys_.end()) {
      return NotFound(
          fmt::format("{} has not joined: `sftctl admin token list` shows those that "
                      "have",
                      id.substr(0, 80)));
    }
    key = found->second;
  }
  if (key.revoked_us == 0) key.revoked_us = now;
  SFT_RETURN_IF_ERROR(
      store_.Write([&](Database& db) { return store::PutNodeKey(db, key); }, actor.audit));
  const MutexLock lock(mutex_);
  keys_[key.node] = key;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Access::DropOldKeys(int64_t before_us) {
  const MutexLock changing(changing_);
  std::vector<std::string> nodes;
  for (const NodeKeyRecord& key : NodeKeys()) {
    if (key.expires_us < before_us) nodes.push_back(key.node);
  }
  if (nodes.empty()) return nodes;
  SFT_RETURN_IF_ERROR(
      store_.Write([&](Database& db) { return store::DropOldNodeKeys(db, before_us); }));
  const MutexLock lock(mutex_);
  for (const std::string& node : nodes) keys_.erase(node);
  return nodes;
}

absl::StatusOr<std::string> Access::AuthorityPem() const {
  if (authority_.has_value()) return authority_->certificate_pem;
  return FailedPrecondition(
      "this server has no certificates: stop it and run `sft-server init --data-dir DIR`");
}

absl::Status Access::CheckClock(int64_t peer_us) const {
  if (peer_us == 0) return absl::OkStatus();
  const int64_t apart = peer_us - now_us();
  if (std::abs(apart) <= Micros(kMaxClockSkew)) return absl::OkStatus();
  return FailedPrecondition(
      fmt::format("the clocks are apart: this node's is {} min {} the server's, which says {}; set "
                  "the wrong one "
                  "(timedatectl, chrony): certificates, tokens and logs depend on it",
                  std::abs(apart) / 60'000'000, apart > 0 ? "ahead of" : "behind", Time(now_us())));
}

absl::Status Access::CheckNewKey(const TokenRecord& token, const std::string& node,
                                 const std::string& key) const {
  const auto known = keys_.find(node);
  if (!token.node.empty() && token.node != node) {
    return PermissionDenied(
        fmt::format("join token {} is for node {}, not for {}", token.id, token.node, node));
  }
  if (known == keys_.end() || known->second.key_sha256 == key || token.node == node) {
    return absl::OkStatus();
  }
  return AlreadyExists(fmt::format(
      "node name {} belongs to a worker that has joined with another key: give this one another "
      "--node, or, if it replaces that one, a token of its own (`sftctl admin token create --join "
      "--node {}`)",
      node, node));
}

absl::StatusOr<std::string> Access::SignNode(NodeKeyRecord record, const std::string& request_pem,
                                             const std::string& use_token, const Actor& actor) {
  SFT_RETURN_IF_ERROR(AuthorityPem().status());
  const WallTime now = clock_.Wall();
  const tls::Validity validity{now - kBackdate, now + kNodeCertificateLife};
  SFT_ASSIGN_OR_RETURN(std::string pem,
                       tls::SignNode(*authority_, request_pem, record.node, validity));
  record.expires_us = UnixMicros(validity.to);
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        if (!use_token.empty()) SFT_RETURN_IF_ERROR(store::UseJoinToken(db, use_token));
        return store::PutNodeKey(db, record);
      },
      actor.audit));
  const MutexLock lock(mutex_);
  keys_[record.node] = record;
  if (!use_token.empty()) ++tokens_[use_token].uses;
  return pem;
}

absl::StatusOr<std::string> Access::Join(const Principal& joiner, const std::string& node,
                                         const std::string& request_pem, const Actor& actor) {
  const MutexLock changing(changing_);
  if (!IsValidLabel(node)) {
    return InvalidArgument(fmt::format(
        "node name \"{}\": letters, digits, '-', '_' and '.', at most 63 (sft-worker --node)",
        node.substr(0, 80)));
  }
  SFT_ASSIGN_OR_RETURN(const std::string key, tls::KeyOfRequest(request_pem));
  std::string use_token = joiner.token;
  {
    const MutexLock lock(mutex_);
    const auto token = tokens_.find(joiner.token);
    if (token == tokens_.end()) return UnknownJoin();
    SFT_RETURN_IF_ERROR(CheckNewKey(token->second, node, key));
    // The response to the first call was lost: the use is counted already.
    const auto known = keys_.find(node);
    const bool repeat = known != keys_.end() && known->second.key_sha256 == key &&
                        known->second.token == joiner.token && known->second.revoked_us == 0;
    if (repeat) use_token.clear();
  }
  return SignNode({node, key, joiner.token, now_us(), 0, 0}, request_pem, use_token, actor);
}

absl::StatusOr<std::string> Access::Renew(const Principal& node, const std::string& request_pem,
                                          const Actor& actor) {
  const MutexLock changing(changing_);
  SFT_ASSIGN_OR_RETURN(const std::string key, tls::KeyOfRequest(request_pem));
  NodeKeyRecord record;
  {
    const MutexLock lock(mutex_);
    const auto known = keys_.find(node.name);
    if (known == keys_.end() || known->second.key_sha256 != key) {
      return PermissionDenied("a node renews the certificate of the key that it has joined with");
    }
    record = known->second;
  }
  return SignNode(std::move(record), request_pem, "", actor);
}

}  // namespace sft::server
