#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/rpc/channel.h"
#include "common/rpc/endpoint.h"

namespace sft::worker {

// The fingerprint of the fleet's authority, from a join token.
absl::StatusOr<std::string> AuthorityOfToken(const std::string& file);

// The worker's identity towards the server: a node with a certificate of the fleet's authority or,
// on the server's own machine, anonymous. Kept in the worker's data folder:
//
//   <data dir>/tls/node.key node.crt ca.crt  joined_with (the id of the join token)
//
// Thread-safe.
class Identity {
 public:
  struct Options {
    std::string server;  // "host:port", or several, with commas
    std::string data_dir;
    std::string node;
    std::string join_token_file;  // empty: none
  };
  // Joins the fleet if there is a token that was not used for it before. FAILED_PRECONDITION for a
  // remote server without certificate or token, for a folder of another node, for an expired
  // certificate, or for clocks that differ too much; otherwise the server's error.
  static absl::StatusOr<std::unique_ptr<Identity>> Open(const Options& options, Clock& clock);

  // The channel to use for the next call.
  std::shared_ptr<grpc::Channel> Channel() const;
  // That server does not serve: the next calls go to the next address of the list.
  void Next();
  // Addresses, and the one that Channel leads to.
  size_t addresses() const { return endpoints_.size(); }
  std::string Address() const;
  // Renews the certificate when two thirds of its time are over. True when the channel has changed.
  absl::StatusOr<bool> RenewIfDue();

 private:
  Identity(Options options, std::vector<rpc::Endpoint> endpoints, Clock& clock)
      : options_(std::move(options)), endpoints_(std::move(endpoints)), clock_(clock) {}
  std::string PathOf(const char* name) const { return options_.data_dir + "/tls/" + name; }
  absl::Status Load();
  absl::Status Join(const std::string& token);
  absl::StatusOr<std::string> AskToJoin(const rpc::Endpoint& server, const std::string& token);
  absl::Status Keep(const std::string& certificate_pem);
  void Dial() SFT_REQUIRES(mutex_);

  const Options options_;
  const std::vector<rpc::Endpoint> endpoints_;  // one at least
  Clock& clock_;
  mutable Mutex mutex_;
  rpc::Security security_ SFT_GUARDED_BY(mutex_);
  size_t current_ SFT_GUARDED_BY(mutex_) = 0;                      // of endpoints_
  std::shared_ptr<grpc::Channel> channel_ SFT_GUARDED_BY(mutex_);  // to that one
};

}  // namespace sft::worker
