#include "common/io/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace sft::io {
namespace {

constexpr int64_t kMebi = int64_t{1} << 20;

class HostMemoryTest : public ::testing::Test {
 protected:
  HostMemoryTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = std::filesystem::path(::testing::TempDir()) / (std::string("sft_host_") + info->name());
    std::filesystem::remove_all(root_);
    Write("proc/meminfo", "MemTotal: 9000000 kB\nMemFree: 100 kB\nMemAvailable:    8192 kB\n");
  }
  ~HostMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  int64_t Available() { return AvailableMemory(root_.string()).value(); }

  std::filesystem::path root_;
};

TEST_F(HostMemoryTest, IsWhatTheKernelCallsAvailableWithoutControlGroups) {
  EXPECT_EQ(Available(), 8 * kMebi);
}

TEST_F(HostMemoryTest, CountsPageCacheOfAGroupAsFree) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "5242880\n");
  Write("sys/fs/cgroup/a/b/memory.current", "4194304\n");
  EXPECT_EQ(Available(), 1 * kMebi);
  Write("sys/fs/cgroup/a/b/memory.stat", "anon 5\nfile 9\ninactive_file 1048576\nactive_file 7\n");
  EXPECT_EQ(Available(), 2 * kMebi + 7);
}

TEST_F(HostMemoryTest, CacheThatHasJustGoneDoesNotMakeALimitOverflow) {
  Write("proc/self/cgroup", "4:memory:/a\n");
  Write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1048576\n");
  Write("sys/fs/cgroup/memory/a/memory.stat", "total_inactive_file 2097152\ntotal_active_file 0\n");
  EXPECT_EQ(Available(), 8 * kMebi);
  Write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4194304\n");
  EXPECT_EQ(Available(), 4 * kMebi) << "no more than the limit";
}

TEST_F(HostMemoryTest, TheTightestGroupAboveCounts) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("sys/fs/cgroup/a/b/memory.current", "4194304\n");
  EXPECT_EQ(Available(), 8 * kMebi);
  Write("sys/fs/cgroup/a/memory.max", "3145728\n");
  Write("sys/fs/cgroup/a/memory.current", "1048576\n");
  EXPECT_EQ(Available(), 2 * kMebi);
}

TEST_F(HostMemoryTest, AContainersOwnGroupIsFoundAtTheTop) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/1234\n0::/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "3145728\n");
  Write("sys/fs/cgroup/memory/memory.usage_in_bytes", "2097152\n");
  Write("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 524288\ntotal_active_file 0\n");
  EXPECT_EQ(Available(), 3 * kMebi / 2);
}

TEST_F(HostMemoryTest, TheTotalIsTheMachinesOrTheTightestLimit) {
  EXPECT_EQ(TotalMemory(root_.string()).value(), int64_t{9'000'000} * 1024);
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("sys/fs/cgroup/a/memory.max", "3145728\n");
  Write("sys/fs/cgroup/a/memory.current", "1048576\n");
  EXPECT_EQ(TotalMemory(root_.string()).value(), 3 * kMebi);
}

TEST_F(HostMemoryTest, AGroupOverItsLimitLeavesNothing) {
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/memory.max", "1000\n");
  Write("sys/fs/cgroup/memory.current", "2000\n");
  EXPECT_EQ(Available(), 0);
}

TEST_F(HostMemoryTest, NamesTheFileThatCannotBeParsed) {
  Write("proc/meminfo", "MemFree: 1 kB\n");
  const auto got = AvailableMemory(root_.string());
  ASSERT_FALSE(got.ok());
  EXPECT_NE(std::string(got.status().message()).find("proc/meminfo"), std::string::npos);
}

TEST(ThisMachinesMemoryTest, IsKnown) { EXPECT_GT(AvailableMemory().value(), 0); }

}  // namespace
}  // namespace sft::io
