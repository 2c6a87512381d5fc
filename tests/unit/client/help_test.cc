#include <gtest/gtest.h>

#include <fstream>

#include "client/base/exit_codes.h"
#include "common/base/env.h"
#include "tests/unit/client/fake_server.h"

// The help texts are goldens in tests/golden/client: a changed flag is a changed file in a review.
// SFT_UPDATE_GOLDENS=1 writes them anew.

namespace sft::client {
namespace {

class HelpTest : public ::testing::TestWithParam<std::string> {};

TEST_P(HelpTest, EqualsItsGolden) {
  FakeServer server;
  const std::string command = GetParam();
  const Outcome run =
      command == "sftctl" ? Sftctl(server, {"--help"}) : Sftctl(server, {command, "--help"});
  EXPECT_EQ(run.code, kSucceeded);
  EXPECT_EQ(run.err, "");
  EXPECT_NE(run.out.find("Example:\n  "), std::string::npos) << "no example";
  const std::string path =
      std::string(SFT_SOURCE_DIR) + "/tests/golden/client/help_" + command + ".txt";
  if (GetEnv("SFT_UPDATE_GOLDENS")) std::ofstream(path) << run.out;
  EXPECT_EQ(ReadTestFile(path), run.out);
}

INSTANTIATE_TEST_SUITE_P(Commands, HelpTest,
                         ::testing::Values("sftctl", "submit", "status", "list", "logs", "cancel",
                                           "checkpoint", "checkpoints", "resume", "wait", "metrics",
                                           "events", "download", "evaluate", "export", "push",
                                           "generate", "chat", "nodes", "variants", "models",
                                           "explain", "completion", "compare", "data", "admin",
                                           "drain", "storage", "rm", "stats", "top", "login",
                                           "whoami", "hold", "release", "sweep", "webhook", "price",
                                           "init", "doctor", "web", "profile"),
                         [](const auto& info) { return info.param; });

TEST(VersionFlagTest, VersionNamesTheProtocol) {
  FakeServer server;
  const Outcome run = Sftctl(server, {"--version"});
  EXPECT_EQ(run.code, kSucceeded);
  EXPECT_NE(run.out.find("sftctl "), std::string::npos);
  EXPECT_NE(run.out.find("protocol"), std::string::npos);
}

}  // namespace
}  // namespace sft::client
