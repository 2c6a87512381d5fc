#include "worker/engine/train/shard.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "common/io/file.h"
#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

namespace fs = std::filesystem;
using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kThreads = 3;

class ShardTest : public testing::TestWithParam<int> {
 protected:
  ShardTest() : dir_(io::MakeTempDir("sft-shard-test-").value()) {}
  ~ShardTest() override { fs::remove_all(dir_); }

  fs::path dir_;
  std::atomic<bool> cancelled_ = false;
};

TEST_P(ShardTest, WritesWhatTheTensorsWereWhenItBegan) {
  Tensor weights = at::arange(10'000'000, at::kFloat), codes = at::ones({333}, at::kByte);
  const Tensor expected = weights.clone();
  ShardWriter writer(at::kCPU, GetParam(), kThreads);
  for (int i = 0; i < 3; ++i) {
    // Memory that was taken before serves what has the same shape; the rest gets fresh memory.
    if (i == 1) writer.Reserve({{"weights", weights}, {"codes", at::ones({2}, at::kByte)}});
    writer.Begin({{"codes", codes}, {"weights", weights}, {"none", at::empty({0})}});
    std::vector<CheckpointFile> files;
    std::thread other([&] { files = writer.Write(dir_ / "new", 1, 2, cancelled_); });
    writer.WaitCopied();
    weights.zero_();
    other.join();
    ASSERT_EQ(files.size(), 1U);
    EXPECT_EQ(files[0].name, "rank-1-of-2.safetensors");
    EXPECT_EQ(files[0].rank, 1);
    const fs::path path = dir_ / "new" / files[0].name;
    const auto hash = io::HashFile(path.string());
    EXPECT_EQ(files[0].sha256, hash->sha256);
    EXPECT_EQ(files[0].size, hash->size);
    const auto shard = SafetensorsFile::Open(path);
    EXPECT_TRUE(at::equal(shard->View("weights"), expected));
    EXPECT_TRUE(at::equal(shard->View("codes"), codes));
    EXPECT_EQ(shard->View("none").numel(), 0);
    weights.copy_(expected);
  }
}

TEST_P(ShardTest, ALargePartIsSeveralFiles) {
  const std::vector<NamedTensor> tensors = {{"a", at::arange(250, at::kFloat)},
                                            {"b", at::arange(900, at::kByte)},
                                            {"c", at::arange(300, at::kDouble)},
                                            {"d", at::ones({10})},
                                            {"e", at::empty({0})}};
  ShardWriter writer(at::kCPU, GetParam(), kThreads, /*file_bytes=*/2000);
  writer.Begin(tensors);
  const std::vector<CheckpointFile> files = writer.Write(dir_, 0, 4, cancelled_);
  // The third is larger than a file may be.
  const std::vector<std::vector<std::string>> expected = {{"a", "b"}, {"c"}, {"d", "e"}};
  const char* const names[] = {"rank-0-of-4.safetensors", "rank-0-of-4-2.safetensors",
                               "rank-0-of-4-3.safetensors"};
  ASSERT_EQ(files.size(), expected.size());
  for (size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(files[i].name, names[i]);
    EXPECT_EQ(files[i].sha256, io::HashFile((dir_ / names[i]).string())->sha256);
    const auto shard = SafetensorsFile::Open(dir_ / names[i]);
    EXPECT_EQ(shard->tensors().size(), expected[i].size());
    for (const NamedTensor& named : tensors) {
      if (shard->Contains(named.name)) {
        EXPECT_TRUE(at::equal(shard->View(named.name), named.tensor)) << named.name;
      }
    }
    for (const std::string& name : expected[i]) EXPECT_TRUE(shard->Contains(name)) << name;
  }
}

TEST_P(ShardTest, OneThatIsGivenUpLeavesNoFileAndHoldsNobodyUp) {
  ShardWriter writer(at::kCPU, GetParam(), kThreads);
  writer.Begin({{"weights", at::ones({1000})}});
  cancelled_ = true;
  EXPECT_THROW(writer.Write(dir_, 0, 1, cancelled_), InfrastructureError);
  writer.WaitCopied();
  EXPECT_TRUE(fs::is_empty(dir_));
}

// The second file may not be as large as it has to be.
TEST_P(ShardTest, WhereOneFileHasNoSpaceNoneIsWritten) {
  ShardWriter writer(at::kCPU, GetParam(), kThreads, /*file_bytes=*/100'000);
  writer.Begin({{"a", at::ones({10'000})}, {"b", at::ones({1'000'000})}, {"c", at::ones({10})}});
  rlimit former{};
  getrlimit(RLIMIT_FSIZE, &former);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1'000'000, former.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  try {
    writer.Write(dir_, 0, 1, cancelled_);
    ADD_FAILURE() << "it was written";
  } catch (const InfrastructureError& error) {
    EXPECT_EQ(error.code(), "disk_full");
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("cannot reserve space for"), HasSubstr("rank-0-of-1-2.safetensors"),
                      HasSubstr("all 3 files of this rank are 4040040 bytes")));
  }
  setrlimit(RLIMIT_FSIZE, &former);
  std::signal(SIGXFSZ, handler);
  writer.WaitCopied();
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_P(ShardTest, AnErrorHoldsNobodyUp) {
  ShardWriter writer(at::kCPU, GetParam(), kThreads);
  writer.Begin({{"weights", at::ones({1000})}});
  EXPECT_THROW(writer.Write("/proc/none", 0, 1, cancelled_), InfrastructureError);
  writer.WaitCopied();
}

// With so many ranks on the node there is no memory for a copy.
INSTANTIATE_TEST_SUITE_P(Memory, ShardTest, testing::Values(1, 2'000'000'000),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace sft::engine
