#include "server/rpc/doorbell.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/io/file.h"

namespace sft::server {
namespace {

using std::chrono::milliseconds;

// A socket of the loopback interface.
class Socket {
 public:
  // Returns its port.
  int Listen() const {
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_.get(), 4), 0);
    EXPECT_EQ(getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    return ntohs(address.sin_port);
  }
  void Dial(int port) const {
    const sockaddr_in address = Loopback(port);
    EXPECT_EQ(connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  void Accept() const { const io::UniqueFd taken(accept(fd_.get(), nullptr, nullptr)); }

 private:
  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }

  const io::UniqueFd fd_{socket(AF_INET, SOCK_STREAM, 0)};
};

TEST(DoorbellTest, RingsWhileAConnectionWaits) {
  const Socket server, other_server, client;
  const int port = server.Listen(), other = other_server.Listen();
  const Doorbell doorbell(port), other_doorbell(other);
  EXPECT_EQ(doorbell.count(), 1);
  EXPECT_FALSE(doorbell.Rings(milliseconds(1)));
  client.Dial(port);
  EXPECT_TRUE(doorbell.Rings(milliseconds(5000)));
  EXPECT_FALSE(other_doorbell.Rings(milliseconds(1)));
  server.Accept();
  EXPECT_FALSE(doorbell.Rings(milliseconds(1)));
}

TEST(DoorbellTest, OfAPortThatNobodyListensOnNeverRings) {
  const Socket server;
  const Doorbell doorbell(server.Listen() == 1 ? 2 : 1);
  EXPECT_EQ(doorbell.count(), 0);
  EXPECT_FALSE(doorbell.Rings(milliseconds(1)));
}

}  // namespace
}  // namespace sft::server
