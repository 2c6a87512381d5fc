#include "server/http/http_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

#include "server/core/subscriber.h"

namespace sft::server {

HttpSocket::HttpSocket(io::UniqueFd fd, const tls::ServerContext* tls) : fd_(std::move(fd)) {
  const int on = 1;
  (void)::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (tls != nullptr) session_ = std::make_unique<tls::ServerSession>(*tls, fd_.get());
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return;
  char text[INET6_ADDRSTRLEN] = {};
  std::string host;
  if (address.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
    host = ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    peer_ = fmt::format("ipv4:{}:{}", host, ntohs(v4->sin_port));
  } else if (address.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
    host = ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
    // How a socket of both families shows IPv4.
    if (host.starts_with("::ffff:")) host.erase(0, 7);
    peer_ = host.find(':') == host.npos ? fmt::format("ipv4:{}:{}", host, ntohs(v6->sin6_port))
                                        : fmt::format("ipv6:[{}]:{}", host, ntohs(v6->sin6_port));
  }
  if (!host.empty()) subscriber_ = SubscriberOf(host);
}

HttpSocket::Next HttpSocket::Read(char* bytes, size_t size, size_t& moved) {
  if (session_ != nullptr) return session_->Read(bytes, size, moved);
  while (true) {
    const ssize_t got = ::recv(fd_.get(), bytes, size, 0);
    if (got > 0) {
      moved = static_cast<size_t>(got);
      return Next::kMoved;
    }
    if (got == 0) return Next::kEnded;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? Next::kWaitRead : Next::kBroken;
  }
}

HttpSocket::Next HttpSocket::Write(std::string_view bytes, size_t& moved) {
  if (session_ != nullptr) return session_->Write(bytes, moved);
  while (true) {
    const ssize_t put = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put > 0) {
      moved = static_cast<size_t>(put);
      return Next::kMoved;
    }
    if (put < 0 && errno == EINTR) continue;
    return put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? Next::kWaitWrite : Next::kBroken;
  }
}

void HttpSocket::CloseSending() {
  if (session_ != nullptr) session_->Close();
  (void)::shutdown(fd_.get(), SHUT_WR);
}

}  // namespace sft::server
