#pragma once

#include <chrono>
#include <cstdint>
#include <map>

#include "common/base/clock.h"

namespace sft::server {

// How many connections a server holds at once, so that some descriptors are left for its files. Of
// one thread.
class ConnectionCap {
 public:
  // What the process may open, less what files and the rest of the server need.
  static int Default();

  ConnectionCap(int most, Clock& clock) : most_(most), clock_(&clock) {}

  // Whether there is room for a socket that was accepted just now; one too many is to be closed.
  // The log has a line, not one for each.
  bool Takes(int socket);
  // Accepting failed with this errno: a line of the log now and then.
  void Failed(int error);
  int most() const { return most_; }

 private:
  // Of the sockets taken those that are open. A number that another file has by now is none.
  void Prune();
  bool IsNews();

  static constexpr std::chrono::seconds kTellAgain{10};
  static constexpr std::chrono::milliseconds kLookAgain{100};
  int most_;
  Clock* clock_;
  std::map<int, uint64_t> open_;  // inodes by descriptor
  MonoTime pruned_{}, told_{};
  int64_t refused_ = 0;  // since told_
};

}  // namespace sft::server
