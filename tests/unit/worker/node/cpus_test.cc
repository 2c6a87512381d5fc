#include "worker/node/cpus.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace sft::worker {
namespace {

using Files = std::map<std::string, std::string>;

// What is usable on a machine that has these files, and allows CPUs 0 to 15.
int Usable(Files files) {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path root =
      std::filesystem::path(::testing::TempDir()) / (std::string("sft_cpus_") + info->name());
  std::filesystem::remove_all(root);
  files.emplace("proc/self/status",
                "Name:\tx\nCpus_allowed:\tffff\nCpus_allowed_list:\t0-15\nA:\n");
  for (const auto& [path, text] : files) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  }
  const int usable = UsableCpus(root.string());
  std::filesystem::remove_all(root);
  return usable;
}

TEST(CpusTest, TheAffinityLimits) {
  EXPECT_EQ(Usable({}), 16);
  const auto allowed = [](const std::string& list) {
    return Usable({{"proc/self/status", "Name:\tx\nCpus_allowed_list:\t" + list + "\n"}});
  };
  EXPECT_EQ(allowed("3"), 1);
  EXPECT_EQ(allowed("0-3,8,10-11"), 7);
  EXPECT_GE(allowed("all of them"), 1) << "what the library says";
}

TEST(CpusTest, TheQuotaOfEachGroupLimits) {
  const std::string self = "proc/self/cgroup", top = "sys/fs/cgroup/";
  EXPECT_EQ(Usable({{self, "0::/a/b\n"}, {top + "a/b/cpu.max", "400000 100000\n"}}), 4);
  EXPECT_EQ(Usable({{self, "0::/a/b\n"}, {top + "a/cpu.max", "250000 100000\n"}}), 3)
      << "rounded up, of the group above";
  EXPECT_EQ(Usable({{self, "0::/\n"}, {top + "cpu.max", "1000 100000\n"}}), 1) << "never none";
  EXPECT_EQ(Usable({{self, "0::/a\n"}, {top + "a/cpu.max", "max 100000\n"}}), 16);
  EXPECT_EQ(Usable({{self, "0::/a\n"}, {top + "a/cpu.max", "9900000 100000\n"}}), 16);
  EXPECT_EQ(Usable({{self, "0::/a\n"}, {top + "a/cpu.max", "broken\n"}}), 16);
  EXPECT_EQ(Usable({{self, "0::/host/path\n"}, {top + "cpu.max", "200000 100000\n"}}), 2)
      << "in a container";
  EXPECT_EQ(Usable({{self, "5:memory:/a\n4:cpu,cpuacct:/a\n"},
                    {top + "cpu/a/cpu.cfs_quota_us", "200000\n"},
                    {top + "cpu/a/cpu.cfs_period_us", "100000\n"}}),
            2);
  EXPECT_EQ(Usable({{self, "4:cpu:/a\n"},
                    {top + "cpu/a/cpu.cfs_quota_us", "-1\n"},
                    {top + "cpu/a/cpu.cfs_period_us", "100000\n"}}),
            16);
}

TEST(CpusTest, ARankGetsThePartOfItsGpuOrSlot) {
  struct {
    const char* name;
    CpuShare share;
    int threads;
  } const cases[] = {
      {"all 8 GPUs", {.cpus = 64, .on_gpu = true, .machine_gpus = 8, .slots = 8}, 8},
      {"one of 8 GPUs", {.cpus = 64, .on_gpu = true, .machine_gpus = 8, .slots = 1}, 8},
      {"three of 8 GPUs", {.cpus = 64, .on_gpu = true, .machine_gpus = 8, .slots = 3}, 8},
      {"one of 8 GPUs, a quota", {.cpus = 20, .on_gpu = true, .machine_gpus = 8, .slots = 1}, 2},
      {"one of 8 GPUs, few CPUs", {.cpus = 4, .on_gpu = true, .machine_gpus = 8, .slots = 1}, 1},
      {"its only GPU", {.cpus = 16, .on_gpu = true, .machine_gpus = 1, .slots = 1}, 16},
      {"more chosen than are listed",
       {.cpus = 16, .on_gpu = true, .machine_gpus = 1, .slots = 2},
       8},
      {"--cpus", {.cpus = 24, .given = true, .on_gpu = true, .machine_gpus = 8, .slots = 2}, 12},
      {"CPU slots", {.cpus = 16, .machine_gpus = 8, .slots = 4}, 4},
      {"more CPU slots than CPUs", {.cpus = 2, .slots = 4}, 1},
      {"CPU slots, --cpus", {.cpus = 6, .given = true, .slots = 2}, 3},
      {"no slots", {.cpus = 6, .slots = 0}, 6},
  };
  for (const auto& each : cases) EXPECT_EQ(ThreadsOf(each.share), each.threads) << each.name;
}

}  // namespace
}  // namespace sft::worker
