#include "common/rpc/endpoint.h"

#include <gtest/gtest.h>

namespace sft::rpc {
namespace {

TEST(EndpointTest, ParsesHostAndPort) {
  const Endpoint v4 = ParseEndpoint("127.0.0.1:7070").value();
  EXPECT_EQ(v4.host, "127.0.0.1");
  EXPECT_EQ(v4.port, 7070);
  const Endpoint v6 = ParseEndpoint("[::1]:80").value();
  EXPECT_EQ(v6.host, "::1");
  EXPECT_EQ(v6.ToString(), "[::1]:80");
  EXPECT_EQ(ParseEndpoint("localhost:0", true).value().port, 0);
}

TEST(EndpointTest, ErrorsShowTheCorrectForm) {
  for (const char* bad :
       {"", "7070", "host:", ":1", "host:x", "host:70000", "host:0", "::1:80", "host:80x"}) {
    const auto endpoint = ParseEndpoint(bad);
    ASSERT_FALSE(endpoint.ok()) << bad;
    EXPECT_NE(Message(endpoint.status()).find("HOST:PORT"), std::string_view::npos)
        << endpoint.status();
  }
}

TEST(EndpointTest, AUrlGoesWithoutItsScheme) {
  EXPECT_EQ(Message(ParseEndpoint("http://host:7070").status()),
            "address \"http://host:7070\": goes without \"http://\"; write HOST:PORT, for example "
            "127.0.0.1:7070");
}

TEST(EndpointTest, KnowsLoopback) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "localhost"})
    EXPECT_TRUE(IsLoopback(host));
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "example.org"})
    EXPECT_FALSE(IsLoopback(host));
}

TEST(EndpointTest, SeveralGoWithCommas) {
  const auto two = ParseEndpoints("a:1,[::1]:2").value();
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].ToString(), "a:1");
  EXPECT_EQ(two[1].ToString(), "[::1]:2");
  EXPECT_EQ(ParseEndpoints("a:1").value().size(), 1u);
  for (const char* bad : {"", "a:1,", ",a:1", "a:1,,b:2", "a:1, b", "a:1;b:2"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseEndpoints(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace sft::rpc
