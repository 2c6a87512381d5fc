#include "worker/rank/dial.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/io/file.h"
#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class DialTest : public testing::Test {
 protected:
  DialTest() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address_;
    auto* const address = reinterpret_cast<sockaddr*>(&address_);
    EXPECT_EQ(bind(socket_.get(), address, size), 0);
    EXPECT_EQ(getsockname(socket_.get(), address, &size), 0);
    found_.ai_family = AF_INET;
    found_.ai_addr = address;
    found_.ai_addrlen = size;
    launch_.node = "n2";
    launch_.first_rank = 2;
    launch_.rendezvous = "127.0.0.1:" + std::to_string(ntohs(address_.sin_port));
  }
  std::string Reach() {
    try {
      ReachRankZero(launch_, clock_, milliseconds(300));
      return "";
    } catch (const engine::InfrastructureError& error) {
      EXPECT_EQ(error.code(), "rendezvous_unreachable");
      return error.what();
    }
  }

  const io::UniqueFd socket_;
  sockaddr_in address_{};
  addrinfo found_{};
  channel::RankLaunch launch_;
  FakeClock clock_;
};

TEST_F(DialTest, AMachineThatRefusesIsReachedThoughNothingListens) {
  const Answered refused = Dial(found_, milliseconds(10'000));
  EXPECT_TRUE(refused.reached);
  EXPECT_FALSE(refused.listens);
  EXPECT_EQ(Reach(), "") << "rank 0 comes later";
  ASSERT_EQ(listen(socket_.get(), 1), 0);
  EXPECT_TRUE(Dial(found_, milliseconds(10'000)).listens);
  EXPECT_EQ(Reach(), "");
}

TEST_F(DialTest, ANodeThatReachesNobodyIsNamed) {
  launch_.rendezvous = "255.255.255.255:9";  // nobody's, refused by the kernel without a packet
  EXPECT_THAT(Reach(), HasSubstr("node n2 does not reach rank 0's node at 255.255.255.255:9: "));
  launch_.rendezvous = "no-such-host.invalid:9";
  EXPECT_THAT(Reach(), HasSubstr("node n2 does not reach rank 0's node at no-such-host.invalid"));
  launch_.first_rank = 0;
  EXPECT_EQ(Reach(), "") << "rank 0's own node is not asked";
  launch_.first_rank = 2;
  launch_.rendezvous = "";
  EXPECT_EQ(Reach(), "") << "one rank needs no meeting";
}

}  // namespace
}  // namespace sft::rank
