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

// A variable set from a file with Windows' ends of lines.
TEST(HubAccessTest, ATokenOfTheEnvironmentIsCheckedAndNotRepeated) {
  const auto access = [](const std::string& token) {
    return HubAccessOf("", "", "", [&](const std::string& name) {
      return name == "HF_TOKEN" ? token : std::string();
    });
  };
  EXPECT_EQ(access("")->token, "");
  EXPECT_EQ(access("hf_right\r\n")->token, "hf_right");
  for (const char* token :
       {"hf_very secret", "hf_very\rsecret", "hf_very\x01secret", "hf_v\xc3\xa9"}) {
    const absl::Status status = access(token).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << token;
    EXPECT_EQ(Message(status), "HF_TOKEN does not hold one token and nothing else");
  }
}

}  // namespace
}  // namespace sft::hub
