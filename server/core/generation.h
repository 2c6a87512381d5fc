#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/tls/certificate.h"
#include "server/store/store.h"

namespace sft::server {

// Which of the servers that have had this fleet's data this one is. The number goes up when a
// backup is restored and when a standby takes over; workers keep the highest that they have obeyed,
// and obey no lower one. So of two servers with one history, such as an old one that comes back
// after its standby has taken over, the older is known to be it: it hears of the higher number,
// notes that in its database and ends. Thread-safe.
class Generation {
 public:
  // FAILED_PRECONDITION when the database's server was replaced, with what to do. `authority` is
  // the fleet's; nullopt: a server without TLS.
  static absl::StatusOr<std::unique_ptr<Generation>> Load(Store& store,
                                                          std::optional<tls::Identity> authority);

  int64_t number() const { return number_; }
  // The authority's signature over the number: with it workers show another server that this one
  // exists. Empty without an authority.
  const std::string& proof() const { return proof_; }

  // What a worker says that it has obeyed. FAILED_PRECONDITION for a higher number that is proven,
  // after Retire; one that is not proven is only logged, once
  // a node, so that no node can stop a server. INVALID_ARGUMENT for one that no server can be
  // (kLastGeneration).
  absl::Status Meet(const std::string& node, int64_t number, const std::string& proof);
  // Another server, at `address`, has the place of this one, if its number is higher. The note is
  // in the database when this returns OK. INVALID_ARGUMENT as of Meet.
  absl::Status Retire(int64_t number, const std::string& address);
  // FAILED_PRECONDITION once it was replaced: the process is to end.
  absl::Status status() const;

 private:
  Generation(Store& store, int64_t number, std::optional<tls::Identity> authority)
      : store_(store), number_(number), authority_(std::move(authority)) {}

  Store& store_;
  const int64_t number_;
  const std::optional<tls::Identity> authority_;
  std::string proof_;  // constant after Load
  mutable Mutex mutex_;
  absl::Status replaced_ SFT_GUARDED_BY(mutex_);
  std::set<std::string> doubted_ SFT_GUARDED_BY(mutex_);  // nodes whose number was not proven
};

}  // namespace sft::server
