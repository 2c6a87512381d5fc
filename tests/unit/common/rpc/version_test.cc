#include "common/rpc/version.h"

#include <gtest/gtest.h>

#include "common/base/version.h"

namespace sft::rpc {
namespace {

TEST(VersionTest, ServesItsOwnProtocolAndRefusesANewerOne) {
  EXPECT_TRUE(CheckPeerProtocol("sftctl", kProtocol, kVersion).ok());
  EXPECT_TRUE(CheckPeerProtocol("sftctl", MinProtocol(), kVersion).ok());
  const absl::Status newer = CheckPeerProtocol("worker node-a", kProtocol + 1, "9.9");
  EXPECT_TRUE(absl::IsFailedPrecondition(newer));
  EXPECT_NE(Message(newer).find("worker node-a 9.9"), std::string_view::npos) << newer;
  EXPECT_FALSE(CheckPeerProtocol("sftctl", 0, "0.0").ok());
}

TEST(VersionTest, AClientRefusesAServerThatDoesNotServeIt) {
  EXPECT_TRUE(CheckServerProtocol(kProtocol, MinProtocol(), kVersion).ok());
  EXPECT_TRUE(CheckServerProtocol(kProtocol + 1, kProtocol, "9").ok());
  EXPECT_FALSE(CheckServerProtocol(kProtocol + 2, kProtocol + 1, "9").ok());
  EXPECT_FALSE(CheckServerProtocol(kProtocol - 1, kProtocol - 1, "0").ok());
}

}  // namespace
}  // namespace sft::rpc
