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
#include "tests/unit/server/loopback.h"

namespace sft::server {

inline void Send(const io::UniqueFd& fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put <= 0) return;  // refused before all of it came
    bytes.remove_prefix(static_cast<size_t>(put));
  }
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
