#include "common/obs/service_manager.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

namespace sft::obs {
namespace {

// The message that a manager listening at `address` receives; '@' begins an abstract name.
std::string Heard(const std::string& address) {
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  std::memcpy(at.sun_path, address.data(), address.size());
  if (address.front() == '@') at.sun_path[0] = '\0';
  const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&at), size), 0) << std::strerror(errno);
  setenv("NOTIFY_SOCKET", address.c_str(), 1);
  TellServiceManager("READY=1");
  unsetenv("NOTIFY_SOCKET");
  char text[64];
  const ssize_t got = recv(fd, text, sizeof(text), MSG_DONTWAIT);
  close(fd);
  return got < 0 ? "" : std::string(text, got);
}

TEST(ServiceManagerTest, TheManagerReceivesTheState) {
  const std::string path = ::testing::TempDir() + "/notify-" + std::to_string(getpid());
  EXPECT_EQ(Heard(path), "READY=1");
  unlink(path.c_str());
  EXPECT_EQ(Heard("@sft-notify-" + std::to_string(getpid())), "READY=1");
}

TEST(ServiceManagerTest, WithoutAManagerNothingIsSent) {
  TellServiceManager("READY=1");
  setenv("NOTIFY_SOCKET", "/nobody/listens/here", 1);
  TellServiceManager("READY=1");  // only logged
  unsetenv("NOTIFY_SOCKET");
}

}  // namespace
}  // namespace sft::obs
