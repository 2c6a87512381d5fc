#include "server/store/access.h"

#include <fmt/format.h>

namespace sft::server::store {
namespace {

#define SFT_TOKEN_COLUMNS                                                                          \
  "id, kind, secret_sha256, user, node, comment, created_by, created_us, expires_us, revoked_us, " \
  "max_uses, uses"

// `read` for each row of the statement.
template <typename Record, typename Read>
absl::StatusOr<std::vector<Record>> All(Statement& list, const Read& read) {
  std::vector<Record> records;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return records;
    records.push_back(read(list));
  }
}

TokenRecord ReadTokenRow(const Statement& row) {
  TokenRecord token;
  token.id = row.Text(0);
  token.kind = static_cast<TokenKind>(row.Int(1));
  token.secret_sha256 = row.Text(2);
  token.user = row.Text(3);
  token.node = row.Text(4);
  token.comment = row.Text(5);
  token.created_by = row.Text(6);
  token.created_us = row.Int(7);
  token.expires_us = row.Int(8);
  token.revoked_us = row.Int(9);
  token.max_uses = static_cast<int>(row.Int(10));
  token.uses = static_cast<int>(row.Int(11));
  return token;
}

}  // namespace

absl::StatusOr<std::vector<UserRecord>> ListUsers(Database& db) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT u.name, u.admin, r.project, r.role, u.issuer, u.subject FROM users u LEFT "
                 "JOIN user_roles r ON r.user = u.name ORDER BY u.name, r.project"));
  std::vector<UserRecord> users;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return users;
    if (users.empty() || users.back().name != list.Text(0)) {
      users.push_back({list.Text(0), list.Bool(1), {}, list.Text(4), list.Text(5)});
    }
    if (!list.IsNull(2)) users.back().roles[list.Text(2)] = static_cast<Role>(list.Int(3));
  }
}

absl::Status PutUser(Database& db, const UserRecord& user, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(Statement put,
                       db.Prepare("INSERT INTO users (name, admin, created_us, issuer, subject) "
                                  "VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET admin "
                                  "= excluded.admin, issuer = excluded.issuer, subject = "
                                  "excluded.subject"));
  put.Bind(user.name).Bind(user.admin).Bind(now_us).Bind(user.issuer).Bind(user.subject);
  SFT_RETURN_IF_ERROR(put.Run());
  SFT_ASSIGN_OR_RETURN(Statement clear, db.Prepare("DELETE FROM user_roles WHERE user = ?"));
  SFT_RETURN_IF_ERROR(clear.Bind(user.name).Run());
  for (const auto& [project, role] : user.roles) {
    SFT_ASSIGN_OR_RETURN(
        Statement add, db.Prepare("INSERT INTO user_roles (user, project, role) VALUES (?, ?, ?)"));
    SFT_RETURN_IF_ERROR(add.Bind(user.name).Bind(project).Bind(static_cast<int>(role)).Run());
  }
  return absl::OkStatus();
}

absl::Status RemoveUser(Database& db, const std::string& name, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(
      Statement revoke,
      db.Prepare("UPDATE tokens SET revoked_us = ? WHERE user = ? AND kind = 1 AND "
                 "revoked_us = 0"));
  SFT_RETURN_IF_ERROR(revoke.Bind(now_us).Bind(name).Run());
  SFT_ASSIGN_OR_RETURN(Statement roles, db.Prepare("DELETE FROM user_roles WHERE user = ?"));
  SFT_RETURN_IF_ERROR(roles.Bind(name).Run());
  SFT_ASSIGN_OR_RETURN(Statement remove, db.Prepare("DELETE FROM users WHERE name = ?"));
  SFT_RETURN_IF_ERROR(remove.Bind(name).Run());
  if (db.changes() == 1) return absl::OkStatus();
  return NotFound(fmt::format("no user \"{}\": `sftctl admin user list` shows them", name));
}

absl::StatusOr<std::vector<TokenRecord>> ListTokens(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement list, db.Prepare("SELECT " SFT_TOKEN_COLUMNS
                                                  " FROM tokens ORDER BY created_us, id"));
  return All<TokenRecord>(list, ReadTokenRow);
}

absl::Status InsertToken(Database& db, const TokenRecord& token) {
  SFT_ASSIGN_OR_RETURN(Statement insert,
                       db.Prepare("INSERT INTO tokens (" SFT_TOKEN_COLUMNS
                                  ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  insert.Bind(token.id).Bind(static_cast<int>(token.kind)).Bind(token.secret_sha256);
  insert.Bind(token.user).Bind(token.node).Bind(token.comment).Bind(token.created_by);
  insert.Bind(token.created_us).Bind(token.expires_us).Bind(token.revoked_us);
  return insert.Bind(token.max_uses).Bind(token.uses).Run();
}

absl::Status RevokeToken(Database& db, const std::string& id, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(
      Statement revoke,
      db.Prepare("UPDATE tokens SET revoked_us = ? WHERE id = ? AND revoked_us = 0"));
  return revoke.Bind(now_us).Bind(id).Run();
}

absl::Status DropOldTokens(Database& db, int64_t before_us) {
  SFT_ASSIGN_OR_RETURN(
      Statement drop, db.Prepare("DELETE FROM tokens WHERE (expires_us > 0 AND expires_us < ?1) OR "
                                 "(revoked_us > 0 AND revoked_us < ?1)"));
  return drop.Bind(before_us).Run();
}

absl::Status DropOldTokensOf(Database& db, const std::string& user, int64_t before_us) {
  SFT_ASSIGN_OR_RETURN(
      Statement drop, db.Prepare("DELETE FROM tokens WHERE user = ?1 AND kind = 1 AND ((expires_us "
                                 "> 0 AND expires_us < ?2) OR (revoked_us > 0 AND revoked_us < "
                                 "?2))"));
  return drop.Bind(user).Bind(before_us).Run();
}

absl::Status ExtendToken(Database& db, const std::string& id, int64_t expires_us) {
  SFT_ASSIGN_OR_RETURN(Statement extend,
                       db.Prepare("UPDATE tokens SET expires_us = ? WHERE id = ?"));
  return extend.Bind(expires_us).Bind(id).Run();
}

absl::Status UseIdToken(Database& db, const std::string& id_sha256, int64_t expires_us,
                        int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(Statement drop,
                       db.Prepare("DELETE FROM used_id_tokens WHERE expires_us < ?"));
  SFT_RETURN_IF_ERROR(drop.Bind(now_us).Run());
  SFT_ASSIGN_OR_RETURN(Statement use,
                       db.Prepare("INSERT INTO used_id_tokens (id_sha256, expires_us) VALUES (?, "
                                  "?) ON CONFLICT DO NOTHING"));
  SFT_RETURN_IF_ERROR(use.Bind(id_sha256).Bind(expires_us).Run());
  if (db.changes() == 1) return absl::OkStatus();
  return AlreadyExists(
      "this ID token was exchanged before, and each is good once: get another one");
}

absl::Status UseJoinToken(Database& db, const std::string& id) {
  SFT_ASSIGN_OR_RETURN(
      Statement use,
      db.Prepare("UPDATE tokens SET uses = uses + 1 WHERE id = ? AND kind = 2 AND revoked_us = 0 "
                 "AND uses < max_uses"));
  SFT_RETURN_IF_ERROR(use.Bind(id).Run());
  if (db.changes() == 1) return absl::OkStatus();
  return FailedPrecondition(fmt::format(
      "join token {} is used up: an admin makes another with `sftctl admin token create "
      "--join`",
      id));
}

absl::StatusOr<std::vector<NodeKeyRecord>> ListNodeKeys(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT node, key_sha256, token, joined_us, expires_us, "
                                  "revoked_us FROM node_keys ORDER BY node"));
  return All<NodeKeyRecord>(list, [](const Statement& row) {
    return NodeKeyRecord{row.Text(0), row.Text(1), row.Text(2), row.Int(3), row.Int(4), row.Int(5)};
  });
}

absl::Status PutNodeKey(Database& db, const NodeKeyRecord& key) {
  SFT_ASSIGN_OR_RETURN(
      Statement put,
      db.Prepare("INSERT INTO node_keys (node, key_sha256, token, joined_us, expires_us, "
                 "revoked_us) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (node) DO UPDATE SET "
                 "key_sha256 = excluded.key_sha256, token = excluded.token, joined_us = "
                 "excluded.joined_us, expires_us = excluded.expires_us, revoked_us = "
                 "excluded.revoked_us"));
  put.Bind(key.node).Bind(key.key_sha256).Bind(key.token).Bind(key.joined_us);
  return put.Bind(key.expires_us).Bind(key.revoked_us).Run();
}

absl::Status DropOldNodeKeys(Database& db, int64_t before_us) {
  SFT_ASSIGN_OR_RETURN(Statement drop, db.Prepare("DELETE FROM node_keys WHERE expires_us < ?"));
  return drop.Bind(before_us).Run();
}

}  // namespace sft::server::store
