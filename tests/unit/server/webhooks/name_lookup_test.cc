#include "server/webhooks/name_lookup.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>

namespace sft::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using Addresses = absl::StatusOr<std::vector<AddressGuard::Address>>;

// A resolver of which each call stands still until it is let go.
struct Stuck {
  std::promise<void> release;
  std::shared_future<void> released{release.get_future()};
};

AddressGuard::Resolve Resolver(const std::shared_ptr<Stuck>& stuck) {
  return [stuck](const std::string& host) -> Addresses {
    if (host == "stuck") stuck->released.wait();
    return std::vector<AddressGuard::Address>(host == "none" ? 0 : 1);
  };
}

TEST(NameLookupTest, GivesWhatTheResolverSays) {
  const auto look_up = BoundedLookup(Resolver(std::make_shared<Stuck>()), minutes(2));
  EXPECT_EQ(look_up("one")->size(), 1u);
  EXPECT_EQ(look_up("none")->size(), 0u);
}

TEST(NameLookupTest, NobodyWaitsForAResolverThatStandsStill) {
  const auto stuck = std::make_shared<Stuck>();
  const auto look_up = BoundedLookup(Resolver(stuck), milliseconds(50), 2);
  EXPECT_TRUE(absl::IsUnavailable(look_up("stuck").status()));
  const auto copy = look_up;
  EXPECT_TRUE(absl::IsUnavailable(copy("stuck").status()));
  const absl::Status refused = look_up("one").status();
  EXPECT_NE(refused.message().find("2 names are being looked up"), std::string_view::npos)
      << refused;
  stuck->release.set_value();
  while (!look_up("one").ok()) std::this_thread::yield();
}

TEST(NameLookupTest, TheSystemKnowsLoopbackAndNoNameThatCannotBe) {
  EXPECT_FALSE(AskSystem("localhost")->empty());
  EXPECT_EQ(AskSystem("127.0.0.1")->size(), 1u);
  EXPECT_TRUE(AskSystem("no-such-name.invalid")->empty());
}

}  // namespace
}  // namespace sft::server
