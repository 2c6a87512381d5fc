#include "server/http/http_call.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

namespace sft::server {
namespace {

// How soon a wait sees that it is ended.
constexpr Nanos kSeesEnd = std::chrono::milliseconds(200);

MonoTime ClockNow() { return Clock::Real().Mono(); }

std::string PeerOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    return fmt::format("ipv4:{}:{}", text, ntohs(v4->sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
  ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  return fmt::format("ipv6:[{}]:{}", text, ntohs(v6->sin6_port));
}

// Content-Length; nothing where it is missing or none.
absl::StatusOr<size_t> LengthOf(const HttpRequest& request) {
  if (!request.Field("transfer-encoding").empty()) {
    return InvalidArgument("a body in chunks is not taken: give a Content-Length");
  }
  const std::string_view text = request.Field("content-length");
  const auto lengths = std::ranges::count(request.fields, "content-length",
                                          &std::pair<std::string, std::string>::first);
  if (lengths == 0) return InvalidArgument("the request has no Content-Length");
  size_t length = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  if (lengths > 1 || error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument("the Content-Length is no number");
  }
  return length;
}

}  // namespace

HttpCall::HttpCall(HttpRequest request, io::UniqueFd fd, std::string begun, Shared& shared)
    : request_(std::move(request)),
      fd_(std::move(fd)),
      shared_(shared),
      peer_(PeerOf(fd_.get())),
      in_chunks_(request_.version != "HTTP/1.0"),
      body_(std::move(begun)) {}

bool HttpCall::Await(int16_t events, MonoTime deadline) const {
  for (;;) {
    const Nanos left = deadline - ClockNow();
    if (left <= Nanos(0) || shared_.ended) return false;
    pollfd entry{fd_.get(), events, 0};
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(std::min(left, kSeesEnd));
    if (::poll(&entry, 1, static_cast<int>(wait.count())) > 0) return true;
  }
}

absl::StatusOr<std::string> HttpCall::ReadBody(size_t most) {
  SFT_ASSIGN_OR_RETURN(const size_t length, LengthOf(request_));
  if (length > most) {
    return absl::OutOfRangeError(
        fmt::format("the body has {} bytes, at most {} are taken", length, most));
  }
  if (body_.size() > length) return InvalidArgument("the body is longer than its Content-Length");
  if (request_.Field("expect") == "100-continue" && body_.empty()) {
    if (!Send("HTTP/1.1 100 Continue\r\n\r\n")) return absl::CancelledError("the caller has gone");
  }
  const MonoTime deadline = ClockNow() + kBodyTimeout;
  while (body_.size() < length) {
    shared_.awaits_body = true;
    const bool more = Await(POLLIN, deadline);
    shared_.awaits_body = false;
    if (shared_.ended) {
      return ResourceExhausted("the place was needed before the body had come: try again later");
    }
    if (!more) {
      return DeadlineExceeded(fmt::format("{} bytes of the body have come in {} s, not {}",
                                          body_.size(), kBodyTimeout.count(), length));
    }
    char bytes[65536];
    const ssize_t got = ::recv(fd_.get(), bytes, std::min(sizeof(bytes), length - body_.size()), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return InvalidArgument("the body is shorter than its Content-Length");
    body_.append(bytes, static_cast<size_t>(got));
  }
  return std::move(body_);
}

bool HttpCall::Send(std::string_view bytes) {
  MonoTime deadline = ClockNow() + kReadTimeout;
  while (!bytes.empty()) {
    const ssize_t put = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put > 0) {
      bytes.remove_prefix(static_cast<size_t>(put));
      deadline = ClockNow() + kReadTimeout;
      continue;
    }
    if (put < 0 && errno == EINTR) continue;
    if (put == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return false;
    if (!Await(POLLOUT, deadline)) return false;
  }
  return true;
}

bool HttpCall::Respond(const HttpResponse& response) {
  begun_ = true;
  if (!Send(ToBytes(response))) return false;
  // What the caller still sends would make the kernel drop the answer on close.
  ::shutdown(fd_.get(), SHUT_WR);
  char bytes[4096];
  const MonoTime deadline = ClockNow() + std::chrono::seconds(1);
  while (Await(POLLIN, deadline)) {
    if (::recv(fd_.get(), bytes, sizeof(bytes), 0) <= 0) break;
  }
  return true;
}

bool HttpCall::Begin(const HttpResponse& head) {
  begun_ = true;
  return Send(in_chunks_ ? ChunkedHead(head) : EndlessHead(head));
}

bool HttpCall::Write(std::string_view piece) {
  return Send(in_chunks_ ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece) : std::string(piece));
}

bool HttpCall::End() { return !in_chunks_ || Send("0\r\n\r\n"); }

bool HttpCall::Gone() const {
  if (shared_.ended) return true;
  pollfd entry{fd_.get(), POLLIN | POLLRDHUP, 0};
  if (::poll(&entry, 1, 0) <= 0) return false;
  if ((entry.revents & (POLLHUP | POLLERR)) != 0) return true;
  // A client may close its sending half and still read. None of this API does, so it counts as
  // gone.
  return (entry.revents & POLLRDHUP) != 0;
}

}  // namespace sft::server
