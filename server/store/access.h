#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/access.h"

// Rows of users, tokens and nodes' keys. As jobs.h. Users and tokens are few: readers take all.

namespace sft::server::store {

absl::StatusOr<std::vector<UserRecord>> ListUsers(Database& db);
// Makes the user, or gives one these roles in the place of those before.
absl::Status PutUser(Database& db, const UserRecord& user, int64_t now_us);
// With its roles; its tokens are revoked and stay as rows.
absl::Status RemoveUser(Database& db, const std::string& name, int64_t now_us);

absl::StatusOr<std::vector<TokenRecord>> ListTokens(Database& db);
absl::Status InsertToken(Database& db, const TokenRecord& token);
absl::Status RevokeToken(Database& db, const std::string& id, int64_t now_us);
// Rows of tokens that ended before that time.
absl::Status DropOldTokens(Database& db, int64_t before_us);
// Those of one user.
absl::Status DropOldTokensOf(Database& db, const std::string& user, int64_t before_us);
// The token is good until then.
absl::Status ExtendToken(Database& db, const std::string& id, int64_t expires_us);
// Keeps that an ID token of others was used, until its end; ALREADY_EXISTS where it was before.
absl::Status UseIdToken(Database& db, const std::string& id_sha256, int64_t expires_us,
                        int64_t now_us);
// Counts one use; FAILED_PRECONDITION when there is none left.
absl::Status UseJoinToken(Database& db, const std::string& id);

absl::StatusOr<std::vector<NodeKeyRecord>> ListNodeKeys(Database& db);
absl::Status PutNodeKey(Database& db, const NodeKeyRecord& key);
// Keys whose last certificate ended before that time.
absl::Status DropOldNodeKeys(Database& db, int64_t before_us);

}  // namespace sft::server::store
