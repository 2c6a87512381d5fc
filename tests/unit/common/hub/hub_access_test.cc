#include "common/hub/hub_access.h"

#include <gtest/gtest.h>

namespace sft::hub {
namespace {

absl::StatusOr<HubAccess> AccessOf(const std::string& endpoint) {
  return HubAccessOf(endpoint, "", "", [](const std::string&) { return std::string(); });
}

TEST(HubAccessTest, AnAddressMayHaveAPathAndEndInASlash) {
  EXPECT_EQ(AccessOf("https://mirror/hub@2/")->endpoint, "https://mirror/hub@2");
  EXPECT_EQ(AccessOf("")->endpoint, "https://huggingface.co");
}

TEST(HubAccessTest, AnAddressWithAPasswordIsRefusedAndNotRepeated) {
  for (const char* endpoint : {"https://user:secret@mirror", "https://secret@mirror/hub",
                               "user:secret@mirror", "ftp://user:secret@mirror"}) {
    const absl::Status status = AccessOf(endpoint).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << endpoint;
    EXPECT_NE(Message(status).find("--hub-token-file"), std::string::npos) << status;
    EXPECT_EQ(Message(status).find("secret"), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace sft::hub
