#include "worker/node/port_lease.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "common/rpc/endpoint.h"

namespace sft::worker {

absl::StatusOr<PortLease> PortLease::Take(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(address.c_str(), "0", &hints, &found); error != 0) {
    return InvalidArgument(
        fmt::format("the worker's address {}: {}", address, gai_strerror(error)));
  }
  PortLease lease;
  lease.socket_ = io::UniqueFd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  const bool ok = lease.socket_.valid() &&
                  bind(lease.socket_.get(), found->ai_addr, found->ai_addrlen) == 0 &&
                  getsockname(lease.socket_.get(), reinterpret_cast<sockaddr*>(&bound), &size) == 0;
  const int error = errno;
  freeaddrinfo(found);
  if (!ok) return ErrnoStatus("no free port on " + address, error);
  const in_port_t port = bound.ss_family == AF_INET6
                             ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                             : reinterpret_cast<sockaddr_in*>(&bound)->sin_port;
  lease.endpoint_ = rpc::Endpoint{address, ntohs(port)}.ToString();
  return lease;
}

}  // namespace sft::worker
