#include "common/rpc/listen.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <string>
#include <system_error>

namespace sft::rpc {
namespace {

// Connections that may wait to be accepted; the kernel makes further ones retry.
constexpr int kBacklog = 1024;

// A socket listening on one address of getaddrinfo's list, at this port. If it is not valid,
// `error` is the errno.
io::UniqueFd ListenOn(const addrinfo& address, int port, bool both_families, int& error) {
  sockaddr_storage at{};
  std::copy_n(reinterpret_cast<const char*>(address.ai_addr), address.ai_addrlen,
              reinterpret_cast<char*>(&at));
  // The port is at the same offset in both families.
  reinterpret_cast<sockaddr_in*>(&at)->sin_port = htons(static_cast<uint16_t>(port));
  io::UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1, only = both_families ? 0 : 1;
  if (!fd.valid() || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      // Small messages must not wait for each other; accepted connections inherit this from the
      // listener.
      ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0 ||
      (address.ai_family == AF_INET6 &&
       ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only)) != 0) ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), address.ai_addrlen) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    error = errno;
    return {};
  }
  return fd;
}

absl::StatusOr<std::vector<io::UniqueFd>> ListenOnAll(const std::string& host, int port,
                                                      bool both_families) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) return InvalidArgument(gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  std::vector<io::UniqueFd> sockets;
  absl::Status refused;
  std::set<std::string> seen;  // a name may have an address twice
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (!seen.emplace(reinterpret_cast<const char*>(each->ai_addr), each->ai_addrlen).second) {
      continue;
    }
    int error = 0;
    io::UniqueFd socket = ListenOn(*each, port, both_families, error);
    if (!socket.valid()) {
      refused = Unavailable(std::generic_category().message(error));
      // A family that the machine lacks is not an error; a port in use is.
      if (error != EADDRNOTAVAIL && error != EAFNOSUPPORT) return refused;
      continue;
    }
    if (port == 0) port = PortOf(socket.get());
    sockets.push_back(std::move(socket));
  }
  if (sockets.empty()) return refused;
  return sockets;
}

}  // namespace

absl::StatusOr<std::vector<io::UniqueFd>> Listen(const Endpoint& endpoint) {
  const bool any = endpoint.host == "0.0.0.0" || endpoint.host == "::";
  if (any) {
    auto both = ListenOnAll("::", endpoint.port, /*both_families=*/true);
    if (both.ok() || endpoint.host == "::") return both;
  }
  return ListenOnAll(endpoint.host, endpoint.port, /*both_families=*/false);
}

int PortOf(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace sft::rpc
