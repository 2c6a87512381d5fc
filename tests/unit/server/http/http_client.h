#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>
#include <utility>

#include "common/io/file.h"
#include "server/http/http_server.h"

namespace sft::server {

inline void Connect(const io::UniqueFd& fd, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}

inline io::UniqueFd Dial(int port) {
  io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Connect(fd, port);
  return fd;
}

inline void Send(const io::UniqueFd& fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put <= 0) return;  // refused before all of it came
    bytes.remove_prefix(static_cast<size_t>(put));
  }
}

// Reads until the other side closes the connection, or `enough` of what came.
inline std::string ReadUntil(
    const io::UniqueFd& fd, const std::function<bool(const std::string&)>& enough =
                                [](const std::string&) { return false; }) {
  std::string answer;
  char bytes[4096];
  while (!enough(answer)) {
    const ssize_t got = ::read(fd.get(), bytes, sizeof(bytes));
    if (got <= 0) break;
    answer.append(bytes, static_cast<size_t>(got));
  }
  return answer;
}

// Reads until a text has come.
inline std::string ReadThrough(const io::UniqueFd& fd, const std::string& text) {
  return ReadUntil(fd, [&](const std::string& so_far) { return so_far.find(text) != so_far.npos; });
}

// Sends `request`, which asks for the connection's end or is refused, and reads the whole answer.
inline std::string Talk(int port, const std::string& request) {
  const io::UniqueFd fd = Dial(port);
  Send(fd, request);
  return ReadUntil(fd);
}

inline std::string Get(const std::string& path, const std::string& more = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + more + "\r\n";
}

// The status of an answer; 0: it is none.
inline int StatusOf(const std::string& answer) {
  return answer.starts_with("HTTP/1.1 ") ? std::stoi(answer.substr(9, 3)) : 0;
}

// A client whose request was sent, and whether the server still holds it.
inline bool IsOpen(const io::UniqueFd& fd) {
  char byte = 0;
  return ::recv(fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

// Answers as the test says, in the server's thread.
class FakeHandler final : public HttpHandler {
 public:
  using Answer = std::function<void(std::shared_ptr<HttpStream>)>;
  explicit FakeHandler(Answer answer) : answer_(std::move(answer)) {}
  void Handle(std::shared_ptr<HttpStream> stream) override { answer_(std::move(stream)); }

 private:
  const Answer answer_;
};

}  // namespace sft::server
