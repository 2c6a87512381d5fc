#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "client/base/connection.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::HasSubstr;

class ServerAddressTest : public ::testing::Test {
 protected:
  ServerAddressTest() : home_(TestFolder()) {
    setenv("XDG_CONFIG_HOME", home_.c_str(), 1);
    unsetenv("SFT_SERVER");
  }
  ~ServerAddressTest() override {
    unsetenv("XDG_CONFIG_HOME");
    unsetenv("SFT_SERVER");
  }
  void WriteConfig(const std::string& text) {
    std::filesystem::create_directories(home_ + "/sft");
    std::ofstream(home_ + "/sft/config.toml") << text;
  }

  const std::string home_;
};

TEST_F(ServerAddressTest, TheFlagBeatsTheVariableBeatsTheFile) {
  EXPECT_EQ(ResolveServer("").value().address, kDefaultServer);
  WriteConfig("server = \"file:1\"\n");
  EXPECT_EQ(ResolveServer("").value().address, "file:1");
  setenv("SFT_SERVER", "variable:2", 1);
  EXPECT_EQ(ResolveServer("").value().address, "variable:2");
  EXPECT_EQ(ResolveServer("flag:3").value().address, "flag:3");
}

TEST_F(ServerAddressTest, SaysWhoGaveIt) {
  EXPECT_EQ(ResolveServer("").value().origin, "the default");
  WriteConfig("server = \"file:1\"\n");
  EXPECT_EQ(ResolveServer("").value().origin, "config.toml");
  setenv("SFT_SERVER", "http://there:2", 1);
  EXPECT_THAT(ResolveServer("").status().ToString(),
              HasSubstr("SFT_SERVER: address \"http://there:2\": goes without \"http://\""));
  EXPECT_EQ(ResolveServer("flag:3").value().origin, "--server");
}

TEST_F(ServerAddressTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(ResolveServer("no-port").status().ToString(), HasSubstr("no-port"));
  WriteConfig("server = \n");
  EXPECT_THAT(ResolveServer("").status().ToString(), HasSubstr("config.toml:1"));
  WriteConfig("\nserver = 3\n");
  EXPECT_THAT(ResolveServer("").status().ToString(),
              HasSubstr("config.toml:2: server must be a string"));
  WriteConfig("server = \"a:1\"\nsevrer = 2\n");
  EXPECT_THAT(ResolveServer("").status().ToString(), HasSubstr("sevrer"));
}

}  // namespace
}  // namespace sft::client
