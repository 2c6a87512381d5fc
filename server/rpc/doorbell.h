#pragma once

#include <chrono>
#include <vector>

namespace sft::server {

// The sockets of this process that listen on one port, beside whoever accepts from them: says when
// somebody dials. Owns none of them. Any thread.
class Doorbell {
 public:
  // Of a server that listens by now. None is found where it does not; then nobody ever rings.
  explicit Doorbell(int port);

  // Waits for so long at most; true at once when a connection is waiting to be accepted.
  bool Rings(std::chrono::milliseconds timeout) const;

  // Sockets that were found.
  int count() const { return static_cast<int>(sockets_.size()); }

 private:
  std::vector<int> sockets_;
};

}  // namespace sft::server
