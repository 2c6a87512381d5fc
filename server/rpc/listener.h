#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/io/file.h"
#include "common/rpc/endpoint.h"
#include "server/rpc/connection_cap.h"

namespace sft::server {

// The sockets that a server listens on, and the one thread that accepts from them. The library's
// own would stop for good at the first accept that fails for want of descriptors; this one goes on.
class Listener {
 public:
  // Gets each connection's descriptor, and owns it. Of the listener's thread.
  using Take = std::function<void(int)>;

  // As rpc::Listen. Connections wait in the kernel until Start.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const rpc::Endpoint& endpoint,
                                                        ConnectionCap cap);
  ~Listener() { Stop(); }
  Listener(const Listener&) = delete;

  void Start(Take take);
  // Accepts no more. What was taken is not touched.
  void Stop();
  int port() const { return port_; }

 private:
  Listener(std::vector<io::UniqueFd> sockets, io::UniqueFd wake, ConnectionCap cap);
  void Loop();
  // What waits at one socket. False: an accept failed, and the next one would, too.
  bool AcceptAll(int socket);

  std::vector<io::UniqueFd> sockets_;
  const io::UniqueFd wake_;  // an eventfd: Stop was called
  ConnectionCap cap_;
  const int port_;
  Take take_;
  std::thread thread_;
};

}  // namespace sft::server
