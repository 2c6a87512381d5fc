#include "worker/engine/dist/rendezvous.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

using ::testing::HasSubstr;

std::string MessageOf(const RendezvousOptions& options) {
  try {
    const Rendezvous rendezvous(options);
  } catch (const InfrastructureError& error) {
    return std::string(error.what()) + " | " + error.advice();
  }
  return "no error";
}

TEST(RendezvousTest, AWorldOfOneOpensNothing) {
  const Rendezvous rendezvous({.rank = 0, .world = 1});
  EXPECT_EQ(rendezvous.store().get(), nullptr);
  EXPECT_EQ(MakeCommunicator(rendezvous, at::kCPU)->world(), 1);
}

TEST(RendezvousTest, SaysThatNotAllRanksCame) {
  const std::string message =
      MessageOf({.rank = 0, .world = 2, .timeout = std::chrono::milliseconds(300)});
  EXPECT_THAT(message, HasSubstr("rank 0 of 2: not all ranks met at 127.0.0.1:"));
  EXPECT_THAT(message, HasSubstr("Look for a rank that ended"));
  EXPECT_THAT(message, ::testing::Not(HasSubstr("Exception raised"))) << "no backtrace";
}

TEST(RendezvousTest, SaysThatThePortIsTaken) {
  std::string message;
  RendezvousOptions first{.rank = 0, .world = 2, .timeout = std::chrono::milliseconds(300)};
  first.on_listening = [&](uint16_t port) {
    message = MessageOf({.port = port, .rank = 0, .world = 2});
  };
  MessageOf(first);
  EXPECT_THAT(message, HasSubstr("cannot listen on 127.0.0.1:"));
  EXPECT_THAT(message, HasSubstr("Address already in use"));
}

TEST(RendezvousTest, SaysThatTheHostHasNoAddress) {
  EXPECT_THAT(MessageOf({.host = "no-such-host.invalid", .port = 1, .rank = 1, .world = 2}),
              HasSubstr("\"no-such-host.invalid\" has no address"));
}

TEST(RendezvousTest, RefusesARankOutsideTheWorld) {
  EXPECT_THROW(Rendezvous({.rank = 2, .world = 2}), InternalError);
}

TEST(RendezvousTest, DataConnectionsUseTheAddressThatReachesRankZero) {
  std::string bind;
  RendezvousOptions options{.rank = 0, .world = 2, .timeout = std::chrono::minutes(10)};
  std::thread other;
  options.on_listening = [&](uint16_t port) {
    other = std::thread([port] {
      const Rendezvous peer(
          {.port = port, .rank = 1, .world = 2, .timeout = std::chrono::minutes(10)});
    });
  };
  const Rendezvous rendezvous(options);
  other.join();
  EXPECT_EQ(rendezvous.bind(), "127.0.0.1");
  EXPECT_NE(rendezvous.port(), 0);
}

// What two ranks of these builds say when they meet.
std::pair<std::string, std::string> Meet(const std::string& build, const std::string& other_build) {
  std::pair<std::string, std::string> said;
  RendezvousOptions options{
      .rank = 0, .world = 2, .build = build, .node = "a", .timeout = std::chrono::minutes(10)};
  std::thread other;
  options.on_listening = [&](uint16_t port) {
    other = std::thread([&, port] {
      said.second = MessageOf({.port = port,
                               .rank = 1,
                               .world = 2,
                               .build = other_build,
                               .node = "b",
                               .timeout = std::chrono::minutes(10)});
    });
  };
  std::unique_ptr<Rendezvous> first;
  try {
    first = std::make_unique<Rendezvous>(options);
    said.first = "no error";
  } catch (const InfrastructureError& error) {
    said.first = fmt::format("{} | {}", error.what(), error.code());
  }
  other.join();
  return said;
}

TEST(RendezvousTest, RanksOfOneBuildMeet) {
  EXPECT_EQ(Meet("1.0", "1.0"), std::pair(std::string("no error"), std::string("no error")));
}

TEST(RendezvousTest, RanksOfDifferentBuildsDoNotTrainTogether) {
  const auto [first, second] = Meet("1.0 (build ab)", "1.1 (build cd)");
  const std::string why =
      "the ranks are of different builds of sft-rank: 1.0 (build ab) on node a; 1.1 (build cd) on "
      "node b | ";
  EXPECT_EQ(first, "rank 0 of 2: " + why + "rank_versions");
  EXPECT_THAT(second, HasSubstr("rank 1 of 2: " + why + "Install the same release"));
}

}  // namespace
}  // namespace sft::engine
