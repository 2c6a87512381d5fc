#pragma once

#include <poll.h>

#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/io/file.h"
#include "worker/channel/launch.h"

namespace sft::shim {

// The shim's end of the control socket: receives command lines, sends answer lines, never blocks. A
// client that sends an over-long line or does not read its answers is dropped; with more than
// kMaxClients the oldest is. One thread. The destructor removes the socket.
class ControlSocket {
 public:
  static constexpr size_t kMaxClients = 16;
  static constexpr size_t kMaxLineBytes = 4096;

  using Handler = std::function<channel::Answer(const channel::Command&)>;

  ControlSocket() = default;
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

  // Replaces a socket file that a dead shim left.
  absl::Status Listen(const std::string& path);
  // Adds the descriptors to poll.
  void AddTo(std::vector<pollfd>& fds) const;
  // Serves the clients that are ready among `fds`.
  void Serve(const std::vector<pollfd>& fds, const Handler& handler);

 private:
  struct Client {
    io::UniqueFd fd;
    std::string received;
  };

  // Returns false to drop the client.
  static bool ServeClient(Client& client, const Handler& handler);

  std::string path_;
  io::UniqueFd listener_;
  std::vector<Client> clients_;
};

}  // namespace sft::shim
