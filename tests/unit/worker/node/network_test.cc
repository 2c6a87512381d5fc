#include "worker/node/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace sft::worker {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(NetworkTest, AFileOfSettingsIsRead) {
  const auto settings = ParseNetworkSettings(
      "# of this rack\n\nNCCL_IB_HCA==mlx5_0,mlx5_1\r\nUCX_NET_DEVICES=mlx5_0:1  \nNCCL_IB_TC=\n"
      "NCCL_IB_TC=106");
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(*settings, (NetworkSettings{{"NCCL_IB_HCA", "=mlx5_0,mlx5_1"},
                                        {"NCCL_IB_TC", "106"},
                                        {"UCX_NET_DEVICES", "mlx5_0:1"}}));
}

TEST(NetworkTest, OnlyVariablesOfNcclAndUcxAreTaken) {
  for (const char* line : {"LD_PRELOAD=/tmp/x.so", "NCCL_IB_HCA", "export NCCL_IB_TC=1", "=1",
                           "nccl_ib_tc=1", "NCCL_A B=1", "PATH=/"}) {
    const auto settings = ParseNetworkSettings(std::string("NCCL_DEBUG=INFO\n") + line);
    ASSERT_FALSE(settings.ok()) << line;
    EXPECT_THAT(settings.status().message(), HasSubstr("line 2"));
    EXPECT_THAT(settings.status().message(), HasSubstr(line));
  }
  EXPECT_FALSE(ParseNetworkSettings("NCCL_IB_TC=\x01").ok());
  EXPECT_FALSE(ParseNetworkSettings("NCCL_IB_TC=" + std::string(1025, '1')).ok());
  std::string many;
  for (int i = 0; i < 65; ++i) many += "NCCL_X" + std::to_string(i) + "=1\n";
  EXPECT_FALSE(ParseNetworkSettings(many).ok());
}

TEST(NetworkTest, TheEnvironmentsOwnAreFound) {
  setenv("NCCL_IB_GID_INDEX", "3", 1);
  setenv("NCCL_ODD", "a\nb", 1);
  const NetworkSettings settings = NetworkSettingsOfEnvironment();
  unsetenv("NCCL_IB_GID_INDEX");
  unsetenv("NCCL_ODD");
  EXPECT_EQ(settings.at("NCCL_IB_GID_INDEX"), "3");
  EXPECT_FALSE(settings.contains("NCCL_ODD"));
  EXPECT_FALSE(settings.contains("PATH"));
}

TEST(NetworkTest, LoopbackIsLoAndIsThere) {
  EXPECT_EQ(InterfaceOf("127.0.0.1"), "lo");
  EXPECT_THAT(InterfaceNames(), Contains("lo"));
}

TEST(NetworkTest, NamesOfInterfacesAreWhole) {
  EXPECT_EQ(ExactInterfaces("eth1"), "=eth1");
  EXPECT_EQ(ExactInterfaces("eth0,eth1"), "=eth0,eth1");
  EXPECT_EQ(ExactInterfaces("=eth0,=eth1"), "=eth0,eth1");
  EXPECT_EQ(ExactInterfaces("^docker0"), "^docker0");
  EXPECT_EQ(ExactInterfaces(""), "");
}

TEST(NetworkTest, AnInterfaceThatTheNodeLacksIsNamedWithNodeAndKey) {
  const std::vector<std::string> names = {"docker0", "eth10", "lo"};
  struct Case {
    const char* variable;
    bool fits;
  };
  for (const Case& each : {Case{"=eth10", true},
                           {"=eth1", false},  // which begins eth10
                           {"eth1", true},    // NCCL's own meaning, in an operator's file
                           {"=eth1,eth10", true},
                           {"=ib0,ib1", false},
                           {"ib", false},
                           {"^docker", true},
                           {"^docker0,eth,lo", false},
                           {"^=eth1", true},
                           {"", true}}) {
    EXPECT_EQ(CheckInterfaces(each.variable, names, "n1", "key").ok(), each.fits) << each.variable;
  }
  EXPECT_EQ(CheckInterfaces("=eth1", names, "n1", "compute.network_interface").message(),
            "node n1 has no network interface for compute.network_interface = \"eth1\": it has "
            "docker0, eth10, lo");
}

}  // namespace
}  // namespace sft::worker
