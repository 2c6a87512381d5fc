#include "common/tls/client_socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/io/file.h"
#include "common/tls/openssl.h"

namespace sft::tls {
namespace {

constexpr size_t kChunk = 8192;

absl::Status Broken(const char* what, int error) {
  return Unavailable(fmt::format("cannot {}: {}", what, strerror(error)));
}

}  // namespace

struct ClientSocket::Parts {
  io::UniqueFd fd;
  Clock& clock;
  MonoTime deadline;
  SslContext context;
  Ssl ssl;  // null: in the clear
};

ClientSocket::ClientSocket(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
ClientSocket::~ClientSocket() = default;

absl::StatusOr<std::unique_ptr<ClientSocket>> ClientSocket::Connect(const std::string& address,
                                                                    int port, Nanos patience,
                                                                    Clock& clock) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return InvalidArgument(fmt::format("{}:{} is no address in digits", address, port));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  io::UniqueFd fd(
      ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!fd.valid()) return Broken("make a socket", errno);
  const int raw = fd.get();
  std::unique_ptr<ClientSocket> made(new ClientSocket(
      std::make_unique<Parts>(Parts{std::move(fd), clock, clock.Mono() + patience, {}, {}})));
  if (::connect(raw, found->ai_addr, found->ai_addrlen) == 0) return made;
  if (errno != EINPROGRESS) return Broken("connect", errno);
  SFT_RETURN_IF_ERROR(made->Wait(POLLOUT));
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(raw, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return Broken("connect", error);
  return made;
}

absl::Status ClientSocket::Wait(short events) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(parts_->deadline - parts_->clock.Mono());
    pollfd polled{parts_->fd.get(), events, 0};
    const int ready = left.count() <= 0 ? 0 : ::poll(&polled, 1, static_cast<int>(left.count()));
    if (ready > 0) return absl::OkStatus();
    if (ready == 0) return absl::DeadlineExceededError("it took too long to answer");
    if (errno != EINTR) return Broken("wait for the connection", errno);
  }
}

absl::Status ClientSocket::WaitForTls(int result, const char* what) {
  switch (SSL_get_error(parts_->ssl.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Wait(POLLIN);
    case SSL_ERROR_WANT_WRITE:
      return Wait(POLLOUT);
    default:
      break;
  }
  const long verdict = SSL_get_verify_result(parts_->ssl.get());
  if (verdict != X509_V_OK) {
    ERR_clear_error();
    return absl::UnauthenticatedError(
        fmt::format("its certificate is not good: {}", X509_verify_cert_error_string(verdict)));
  }
  return Unavailable(std::string(Message(LibraryError(what))));
}

absl::Status ClientSocket::StartTls(const std::string& host, const std::string& ca_file) {
  parts_->context.reset(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* const context = parts_->context.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1) {
    return LibraryError("cannot begin TLS");
  }
  const bool trusts = ca_file.empty()
                          ? SSL_CTX_set_default_verify_paths(context) == 1
                          : SSL_CTX_load_verify_locations(context, ca_file.c_str(), nullptr) == 1;
  if (!trusts) return LibraryError("cannot read the authorities that are trusted");
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  parts_->ssl.reset(SSL_new(context));
  SSL* const ssl = parts_->ssl.get();
  if (ssl == nullptr || SSL_set_fd(ssl, parts_->fd.get()) != 1) {
    return LibraryError("cannot begin TLS");
  }
  X509_VERIFY_PARAM* const wanted = SSL_get0_param(ssl);
  const bool is_address = X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) == 1;
  const bool named = is_address || (X509_VERIFY_PARAM_set1_host(wanted, host.c_str(), 0) == 1 &&
                                    SSL_set_tlsext_host_name(ssl, host.c_str()) == 1);
  ERR_clear_error();
  if (!named) return LibraryError("cannot begin TLS");
  while (true) {
    const int result = SSL_connect(ssl);
    if (result == 1) return absl::OkStatus();
    SFT_RETURN_IF_ERROR(WaitForTls(result, "TLS does not come about"));
  }
}

absl::Status ClientSocket::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto size = static_cast<int>(std::min<size_t>(bytes.size(), kChunk));
    if (parts_->ssl != nullptr) {
      const int written = SSL_write(parts_->ssl.get(), bytes.data(), size);
      if (written > 0) {
        bytes.remove_prefix(static_cast<size_t>(written));
      } else {
        SFT_RETURN_IF_ERROR(WaitForTls(written, "cannot send"));
      }
      continue;
    }
    const ssize_t written = ::send(parts_->fd.get(), bytes.data(), size, MSG_NOSIGNAL);
    if (written > 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      SFT_RETURN_IF_ERROR(Wait(POLLOUT));
    } else if (errno != EINTR) {
      return Broken("send", errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ClientSocket::Read() {
  std::string bytes(kChunk, '\0');
  while (true) {
    if (parts_->ssl != nullptr) {
      const int got = SSL_read(parts_->ssl.get(), bytes.data(), static_cast<int>(bytes.size()));
      if (got > 0) return bytes.substr(0, static_cast<size_t>(got));
      if (SSL_get_error(parts_->ssl.get(), got) == SSL_ERROR_ZERO_RETURN) return std::string();
      SFT_RETURN_IF_ERROR(WaitForTls(got, "cannot receive"));
      continue;
    }
    const ssize_t got = ::recv(parts_->fd.get(), bytes.data(), bytes.size(), 0);
    if (got >= 0) return bytes.substr(0, static_cast<size_t>(got));
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      SFT_RETURN_IF_ERROR(Wait(POLLIN));
    } else if (errno != EINTR) {
      return Broken("receive", errno);
    }
  }
}

}  // namespace sft::tls
