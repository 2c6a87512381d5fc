#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/tls/certificate.h"
#include "server/state/access.h"
#include "server/store/store.h"

namespace sft::server {

// Authentication data: users, tokens and the nodes' keys, and the operator's changes to them.
// Database rows with a copy in memory, which each call reads. Thread-safe.
class Access {
 public:
  // A larger difference between clocks is an error: certificates and records depend on them.
  static constexpr std::chrono::minutes kMaxClockSkew{5};
  static constexpr std::chrono::hours kNodeCertificateLife{24 * 30};

  // `authority` signs the nodes' certificates; without one no node can join.
  static absl::StatusOr<std::unique_ptr<Access>> Load(Store& store, Clock& clock,
                                                      std::optional<tls::Identity> authority);

  // Authenticates a token. UNAUTHENTICATED for one that is unknown, expired, revoked or of a
  // deleted user; a wrong secret is not distinguished from an unknown id.
  absl::StatusOr<Principal> OfToken(std::string_view text) const;
  // The same for a token of a user whose secret was shown before: by its id, for a session.
  absl::StatusOr<Principal> OfSession(const std::string& token_id) const;
  // Authenticates a node by a client certificate whose key the peer has proved to hold.
  absl::StatusOr<Principal> OfCertificate(const std::string& pem) const;

  // Called after each change of what a user may do, with the user's name. Set before the first
  // call.
  void WhenRightsChange(std::function<void(const std::string& user)> tell) {
    rights_changed_ = std::move(tell);
  }

  std::vector<UserRecord> Users() const;
  std::optional<UserRecord> FindUser(const std::string& name) const;
  // Both put off the webhooks that the user has made and that hear of what the user may no longer
  // read. FAILED_PRECONDITION for the roles of a user for whom an issuer vouches.
  absl::Status PutUser(const UserRecord& user, const Actor& actor = {});
  absl::Status RemoveUser(const std::string& name, const Actor& actor = {});

  // What a login through the company's provider, or for a job of a CI, gives.
  struct Vouched {
    UserRecord user;      // with whom it is to the issuer; its name is the one it would like
    int64_t life_us = 0;  // of the token
    std::string comment;  // of the token
    // An ID token that is good once: the SHA-256 of its id, and its end. Empty: none.
    std::string used_id = {};
    int64_t used_until_us = 0;
  };
  // The name of the user that they are here: the one of before, or the one it would like if that is
  // nobody's. ALREADY_EXISTS where it is somebody's.
  absl::StatusOr<std::string> NameOf(const UserRecord& user) const;
  // Gives the user these roles, in the place of those before, and makes a token; `token` is filled
  // in. ALREADY_EXISTS as of NameOf, and for an ID token that was used before.
  absl::StatusOr<std::string> LogIn(const Vouched& vouched, TokenRecord& token,
                                    const Actor& actor = {});
  // The issuer was asked again: gives the user these roles, with a row of the audit if they are
  // others, and has the token end then. NOT_FOUND for a token or a user that was revoked or removed
  // meanwhile.
  absl::Status Renew(const std::string& token_id, UserRecord user, int64_t expires_us,
                     AuditRow* audit = nullptr);
  // When a call was admitted with the token; 0: not since this server runs.
  int64_t LastUse(const std::string& token_id) const;

  std::vector<TokenRecord> Tokens() const;
  std::optional<TokenRecord> FindToken(const std::string& id) const;
  std::vector<NodeKeyRecord> NodeKeys() const;
  // Fills in id, hash and time, and returns the text with the secret, which is stored nowhere else.
  // FAILED_PRECONDITION for a user for whom an issuer vouches: who is none there any more is to
  // have no token here.
  absl::StatusOr<std::string> CreateToken(TokenRecord& token, const Actor& actor = {});
  // `id` is a token's id or "nodes/NODE"; NOT_FOUND for any other.
  absl::Status Revoke(const std::string& id, const Actor& actor = {});

  // Joins a node and returns its certificate. See AuthService.Join.
  absl::StatusOr<std::string> Join(const Principal& joiner, const std::string& node,
                                   const std::string& request_pem, const Actor& actor = {});
  absl::StatusOr<std::string> Renew(const Principal& node, const std::string& request_pem,
                                    const Actor& actor = {});
  // Forgets the keys of nodes whose last certificate ended before that time, and returns the nodes'
  // names, which are free then.
  absl::StatusOr<std::vector<std::string>> DropOldKeys(int64_t before_us);
  absl::StatusOr<std::string> AuthorityPem() const;
  // FAILED_PRECONDITION when the peer's clock differs too much from this one. 0 means that the peer
  // did not say.
  absl::Status CheckClock(int64_t peer_us) const;
  int64_t now_us() const { return UnixMicros(clock_.Wall()); }

 private:
  Access(Store& store, Clock& clock, std::optional<tls::Identity> authority)
      : store_(store), clock_(clock), authority_(std::move(authority)) {}
  absl::Status Reload();
  // As the user is now; without rights where there is none of that name.
  UserRecord Known(const std::string& name) const SFT_EXCLUDES(mutex_);
  absl::StatusOr<Principal> OfRecord(const TokenRecord& token) const SFT_REQUIRES(mutex_);
  // Gives it an id and a secret.
  TokenText Fill(TokenRecord& token) const;
  // Rows and copy get the user as it is now. `with`: more of the transaction; may be null.
  absl::Status Put(const UserRecord& user, const Actor& actor, const Store::Function& with);
  // Checks that the token may replace a key already registered under the name.
  absl::Status CheckNewKey(const TokenRecord& token, const std::string& node,
                           const std::string& key) const SFT_REQUIRES(mutex_);
  absl::StatusOr<std::string> SignNode(NodeKeyRecord record, const std::string& request_pem,
                                       const std::string& use_token, const Actor& actor);

  Store& store_;
  Clock& clock_;
  const std::optional<tls::Identity> authority_;
  std::function<void(const std::string&)> rights_changed_ = [](const std::string&) {};

  // Held over a whole change of rows and copy, so that changes do not overlap.
  Mutex changing_;
  mutable Mutex mutex_;
  std::map<std::string, UserRecord> users_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, TokenRecord> tokens_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, NodeKeyRecord> keys_ SFT_GUARDED_BY(mutex_);
  // Of users' tokens.
  mutable std::map<std::string, int64_t> last_use_us_ SFT_GUARDED_BY(mutex_);
  // Certificates whose signature was verified: verifying costs more than most calls.
  mutable std::map<std::string, tls::Certificate> verified_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
