#include "server/rpc/doorbell.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <charconv>
#include <filesystem>
#include <string>

namespace sft::server {
namespace {

bool ListensOn(int socket, int port) {
  int listens = 0;
  socklen_t size = sizeof listens;
  if (getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) {
    return false;
  }
  sockaddr_storage address{};
  size = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return false;
  // The port stands at one place in both families.
  const auto* internet = reinterpret_cast<const sockaddr_in*>(&address);
  const bool has_port = address.ss_family == AF_INET || address.ss_family == AF_INET6;
  return has_port && ntohs(internet->sin_port) == port;
}

}  // namespace

Doorbell::Doorbell(int port) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = entry.path().filename().string();
    int socket = -1;
    std::from_chars(name.data(), name.data() + name.size(), socket);
    if (socket >= 0 && ListensOn(socket, port)) sockets_.push_back(socket);
  }
}

bool Doorbell::Rings(std::chrono::milliseconds timeout) const {
  std::vector<pollfd> polled;
  for (const int socket : sockets_) polled.push_back({socket, POLLIN, 0});
  return poll(polled.data(), polled.size(), static_cast<int>(timeout.count())) > 0;
}

}  // namespace sft::server
