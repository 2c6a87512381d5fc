#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

// Who may do what. Pure. Times are microseconds since the Unix epoch, 0 for "not" or "never".

namespace sft::server {

// What somebody may do in a project; each may do what those before it may. Stored: never renumber.
enum class Role : int { kNone = 0, kViewer = 1, kSubmitter = 2, kAdmin = 3 };
std::string_view ToString(Role role);

// A person or a program that has tokens.
struct UserRecord {
  std::string name;
  bool admin = false;                 // kAdmin everywhere
  std::map<std::string, Role> roles;  // by project
  // Who it is to those who vouch for it: the company's provider and its name for a person, or
  // kCiIssuer and a rule. Then each login sets its roles. Empty: an admin does.
  std::string issuer = {}, subject = {};
};
// No provider's address.
inline constexpr char kCiIssuer[] = "ci";

// Stored: never renumber.
enum class TokenKind : int { kUser = 1, kJoin = 2 };

// What a token says, but its secret.
struct TokenRecord {
  std::string id;
  TokenKind kind = TokenKind::kUser;
  std::string secret_sha256;
  std::string user;  // of kUser
  std::string node;  // of kJoin: the only node that may use it; empty: any
  std::string comment;
  std::string created_by;
  int64_t created_us = 0;
  int64_t expires_us = 0;
  int64_t revoked_us = 0;
  int max_uses = 0;  // of kJoin
  int uses = 0;
};

// The key that a node has joined with.
struct NodeKeyRecord {
  std::string node;
  std::string key_sha256;
  std::string token;  // it joined with
  int64_t joined_us = 0;
  int64_t expires_us = 0;  // of its newest certificate
  int64_t revoked_us = 0;
};

// Who makes a call.
struct Principal {
  enum class Kind { kNobody, kUser, kNode, kJoiner };
  Kind kind = Kind::kNobody;
  std::string name;   // a user's or a node's
  std::string token;  // id
  int64_t expires_us = 0;
  bool local = false;  // of a server that serves loopback without tokens
  bool admin = false;
  std::map<std::string, Role> roles;

  // As it is shown and recorded: "ann", "nodes/gpu-7".
  std::string Title() const;
  Role RoleIn(const std::string& project) const;
  // In whichever project it is highest.
  Role Best() const;
};

// A token as it is written: "sft_ID_SECRET", or "sftjoin_ID_SECRET_FINGERPRINT" with the
// fingerprint of the fleet's authority.
struct TokenText {
  TokenKind kind = TokenKind::kUser;
  std::string id, secret, fingerprint;
};
std::string Write(const TokenText& token);
std::optional<TokenText> ReadToken(std::string_view text);

// In a time that does not depend on where they differ.
bool EqualSecrets(std::string_view a, std::string_view b);

}  // namespace sft::server
