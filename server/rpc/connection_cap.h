#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace sft::server {

// How many connections a gRPC server holds at once. The library has no such limit, and where it
// runs out of descriptors it never accepts again. Thread-safe.
class ConnectionCap {
 public:
  // What the process may open, less what files and the rest of the server need.
  static int Default();

  ConnectionCap(int most, Clock& clock) : most_(most), clock_(clock) {}

  // Of a socket that was accepted just now; one too many is shut down, so that whoever owns it
  // closes it.
  void Take(int socket);
  int most() const { return most_; }

 private:
  // Of the sockets taken those that are open. A number that another file has by now is none.
  void Prune() SFT_REQUIRES(mutex_);

  static constexpr std::chrono::seconds kTellAgain{10};
  static constexpr std::chrono::milliseconds kLookAgain{100};
  const int most_;
  Clock& clock_;
  Mutex mutex_;
  std::map<int, uint64_t> open_ SFT_GUARDED_BY(mutex_);  // inodes by descriptor
  MonoTime pruned_ SFT_GUARDED_BY(mutex_){};
  MonoTime told_ SFT_GUARDED_BY(mutex_){};
  int64_t refused_ SFT_GUARDED_BY(mutex_) = 0;  // since told_
};

// Has the sockets that a server accepts taken by a cap.
void CapConnections(std::shared_ptr<ConnectionCap> cap, grpc::ServerBuilder& builder);

}  // namespace sft::server
