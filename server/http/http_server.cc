#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "common/obs/log.h"

namespace sft::server {
namespace {

constexpr int kBacklog = 16;

std::string_view StatusText(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    default:
      return "Service Unavailable";
  }
}

absl::StatusOr<io::UniqueFd> Listen(const rpc::Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code =
      getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (code != 0) {
    return InvalidArgument(fmt::format("--http {}: {}", endpoint.ToString(), gai_strerror(code)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  io::UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!fd.valid() || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return Annotate(ErrnoStatus(endpoint.ToString(), errno),
                    "cannot listen for HTTP (give another --http HOST:PORT, or --http off)");
  }
  return fd;
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

// Reads up to the empty line that ends a request's head. False: the client is gone or too slow.
bool ReadHead(int fd, std::string& head) {
  char bytes[2048];
  while (head.find("\r\n\r\n") == head.npos && head.size() <= HttpServer::kMaxHead) {
    pollfd waiting{fd, POLLIN, 0};
    if (::poll(&waiting, 1, HttpServer::kClientTimeoutMs) <= 0) return false;
    const ssize_t got = ::recv(fd, bytes, sizeof(bytes), 0);
    if (got <= 0) return false;
    head.append(bytes, static_cast<size_t>(got));
  }
  return true;
}

void SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    pollfd waiting{fd, POLLOUT, 0};
    if (::poll(&waiting, 1, HttpServer::kClientTimeoutMs) <= 0) return;
    const ssize_t put = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(put));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const rpc::Endpoint& endpoint,
                                                              Handler handler) {
  if (!rpc::IsLoopback(endpoint.host)) {
    return PermissionDenied(
        fmt::format("--http {}: only loopback addresses are served until TLS and tokens exist",
                    endpoint.ToString()));
  }
  SFT_ASSIGN_OR_RETURN(io::UniqueFd listener, Listen(endpoint));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("cannot create a pipe", errno);
  const int port = PortOf(listener.get());
  return std::unique_ptr<HttpServer>(new HttpServer(
      std::move(listener), io::UniqueFd(ends[0]), io::UniqueFd(ends[1]), port, std::move(handler)));
}

HttpServer::HttpServer(io::UniqueFd listener, io::UniqueFd stop_read, io::UniqueFd stop_write,
                       int port, Handler handler)
    : listener_(std::move(listener)),
      stop_read_(std::move(stop_read)),
      stop_write_(std::move(stop_write)),
      port_(port),
      handler_(std::move(handler)),
      thread_([this] { Loop(); }) {}

HttpServer::~HttpServer() {
  const char byte = 0;
  if (::write(stop_write_.get(), &byte, 1) != 1) spdlog::error("cannot stop the HTTP thread");
  thread_.join();
}

void HttpServer::Loop() {
  obs::NameThread("http");
  while (true) {
    pollfd waiting[2] = {{listener_.get(), POLLIN, 0}, {stop_read_.get(), POLLIN, 0}};
    if (::poll(waiting, 2, -1) < 0 && errno != EINTR) return;
    if (waiting[1].revents != 0) return;
    if ((waiting[0].revents & POLLIN) == 0) continue;
    const io::UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client.valid()) Serve(client);
  }
}

void HttpServer::Serve(const io::UniqueFd& client) const {
  std::string head;
  if (!ReadHead(client.get(), head)) return;
  HttpResponse response;
  const size_t method_end = head.find(' ');
  const size_t path_end = method_end == head.npos ? head.npos : head.find(' ', method_end + 1);
  if (head.size() > kMaxHead) {
    response = {431, response.content_type, "the request's head is too large\n"};
  } else if (path_end == head.npos) {
    response = {400, response.content_type, "this is not an HTTP request\n"};
  } else if (head.substr(0, method_end) != "GET") {
    response = {405, response.content_type, "only GET is served\n"};
  } else {
    std::string path = head.substr(method_end + 1, path_end - method_end - 1);
    response = handler_(path.substr(0, path.find('?')));
  }
  SendAll(client.get(),
          fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: "
                      "close\r\n\r\n{}",
                      response.status, StatusText(response.status), response.content_type,
                      response.body.size(), response.body));
}

}  // namespace sft::server
