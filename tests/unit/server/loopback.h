#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "common/io/file.h"

// Sockets of tests, all on loopback.

namespace sft::server {

inline sockaddr_in LoopbackAddress(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

inline void Connect(const io::UniqueFd& fd, int port) {
  const sockaddr_in address = LoopbackAddress(port);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
}

inline io::UniqueFd Dial(int port) {
  io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Connect(fd, port);
  return fd;
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

// Answers one request after the other, each on a connection of its own, in a thread of its own.
class LoopbackServer {
 public:
  // A request has come when `end` has. `answer` must outlive the server.
  LoopbackServer(std::string end, std::function<std::string(const std::string& request)> answer)
      : end_(std::move(end)),
        answer_(std::move(answer)),
        listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = LoopbackAddress(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~LoopbackServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  LoopbackServer(const LoopbackServer&) = delete;
  int port() const { return port_; }

 private:
  void Serve() {
    while (true) {
      const io::UniqueFd connection(::accept(listener_.get(), nullptr, nullptr));
      if (connection.get() < 0) return;
      const std::string request = ReadThrough(connection, end_);
      (void)io::WriteAll(connection.get(), answer_(request), "socket");
    }
  }

  const std::string end_;
  const std::function<std::string(const std::string&)> answer_;
  const io::UniqueFd listener_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace sft::server
