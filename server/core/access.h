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

// Users, tokens and the nodes' keys: who a caller is, and the operator's changes to that. Rows of
// the database with a copy in memory, which each call asks. Thread-safe.
class Access {
 public:
  // Clocks that differ by more are an error: certificates and records depend on them.
  static constexpr std::chrono::minutes kMaxClockSkew{5};
  static constexpr std::chrono::hours kNodeCertificateLife{24 * 30};

  // `authority` signs the nodes' certificates; without one no node can join.
  static absl::StatusOr<std::unique_ptr<Access>> Load(Store& store, Clock& clock,
                                                      std::optional<tls::Identity> authority);

  // Who holds the token. UNAUTHENTICATED for one that is unknown, expired, revoked or of a user who
  // is gone; what is wrong with the secret is not told from an unknown id.
  absl::StatusOr<Principal> OfToken(std::string_view text) const;
  // The node of a client certificate whose key the peer has proved to hold.
  absl::StatusOr<Principal> OfCertificate(const std::string& pem) const;

  // Called after each change that may take a right away. Set before the first call.
  void WhenRightsChange(std::function<void()> tell) { rights_changed_ = std::move(tell); }

  std::vector<UserRecord> Users() const;
  absl::Status PutUser(const UserRecord& user, const Actor& actor = {});
  absl::Status RemoveUser(const std::string& name, const Actor& actor = {});

  std::vector<TokenRecord> Tokens() const;
  std::vector<NodeKeyRecord> NodeKeys() const;
  // Fills in id, hash and time; gives the text with the secret, which nothing else has.
  absl::StatusOr<std::string> CreateToken(TokenRecord& token, const Actor& actor = {});
  // NOT_FOUND for neither a token's id nor "nodes/NODE".
  absl::Status Revoke(const std::string& id, const Actor& actor = {});

  // The node's certificate. See AuthService.Join.
  absl::StatusOr<std::string> Join(const Principal& joiner, const std::string& node,
                                   const std::string& request_pem, const Actor& actor = {});
  absl::StatusOr<std::string> Renew(const Principal& node, const std::string& request_pem,
                                    const Actor& actor = {});
  absl::StatusOr<std::string> AuthorityPem() const;
  // FAILED_PRECONDITION when the peer's clock is too far from this one. 0: it did not say.
  absl::Status CheckClock(int64_t peer_us) const;
  int64_t now_us() const { return UnixMicros(clock_.Wall()); }

 private:
  Access(Store& store, Clock& clock, std::optional<tls::Identity> authority)
      : store_(store), clock_(clock), authority_(std::move(authority)) {}
  absl::Status Reload();
  // What the token may become of a key that is registered under the name already.
  absl::Status CheckNewKey(const TokenRecord& token, const std::string& node,
                           const std::string& key) const SFT_REQUIRES(mutex_);
  absl::StatusOr<std::string> SignNode(NodeKeyRecord record, const std::string& request_pem,
                                       const std::string& use_token, const Actor& actor);

  Store& store_;
  Clock& clock_;
  const std::optional<tls::Identity> authority_;
  std::function<void()> rights_changed_ = [] {};

  // Held over a whole change, rows and copy, so that changes do not overlap.
  Mutex changing_;
  mutable Mutex mutex_;
  std::map<std::string, UserRecord> users_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, TokenRecord> tokens_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, NodeKeyRecord> keys_ SFT_GUARDED_BY(mutex_);
  // Certificates whose signature was checked: checking costs more than most calls.
  mutable std::map<std::string, tls::Certificate> verified_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
