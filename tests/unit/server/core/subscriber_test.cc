#include "server/core/subscriber.h"

#include <gtest/gtest.h>

namespace sft::server {
namespace {

TEST(SubscriberTest, ANetworkOfASubscriberCountsAsOne) {
  EXPECT_EQ(SubscriberOf("10.0.0.3"), "10.0.0.3");
  EXPECT_EQ(SubscriberOf("2001:db8:1:2::1"), "2001:db8:1:2::/64");
  EXPECT_EQ(SubscriberOf("2001:db8:1:2:a:b:c:d"), "2001:db8:1:2::/64");
  EXPECT_EQ(SubscriberOf("2001:db8:1:3::1"), "2001:db8:1:3::/64");
  EXPECT_EQ(SubscriberOf("fe80::1%eth0"), SubscriberOf("fe80::2%eth0"));
  EXPECT_EQ(SubscriberOf("::ffff:10.0.0.3"), "10.0.0.3");
  for (const char* here : {"127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_EQ(SubscriberOf(here), "") << here;
  }
}

}  // namespace
}  // namespace sft::server
