#include "worker/engine/train/shard.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "common/io/file.h"
#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

namespace fs = std::filesystem;
using at::Tensor;

constexpr int kCopiers = 3;

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
  ShardWriter writer(at::kCPU, GetParam(), kCopiers);
  for (int i = 0; i < 3; ++i) {
    // Memory that was taken before serves what has the same shape; the rest gets fresh memory.
    if (i == 1) writer.Reserve({{"weights", weights}, {"codes", at::ones({2}, at::kByte)}});
    writer.Begin({{"codes", codes}, {"weights", weights}, {"none", at::empty({0})}});
    CheckpointFile file;
    std::thread other([&] { file = writer.Write(dir_ / "new", "shard", cancelled_); });
    writer.WaitCopied();
    weights.zero_();
    other.join();
    const auto hash = io::HashFile((dir_ / "new" / "shard").string());
    EXPECT_EQ(file.sha256, hash->sha256);
    EXPECT_EQ(file.size, hash->size);
    const auto shard = SafetensorsFile::Open(dir_ / "new" / "shard");
    EXPECT_TRUE(at::equal(shard->View("weights"), expected));
    EXPECT_TRUE(at::equal(shard->View("codes"), codes));
    EXPECT_EQ(shard->View("none").numel(), 0);
    weights.copy_(expected);
  }
}

TEST_P(ShardTest, OneThatIsGivenUpLeavesNoFileAndHoldsNobodyUp) {
  ShardWriter writer(at::kCPU, GetParam(), kCopiers);
  writer.Begin({{"weights", at::ones({1000})}});
  cancelled_ = true;
  EXPECT_THROW(writer.Write(dir_, "shard", cancelled_), InfrastructureError);
  writer.WaitCopied();
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_P(ShardTest, AnErrorHoldsNobodyUp) {
  ShardWriter writer(at::kCPU, GetParam(), kCopiers);
  writer.Begin({{"weights", at::ones({1000})}});
  EXPECT_THROW(writer.Write("/proc/none", "shard", cancelled_), InfrastructureError);
  writer.WaitCopied();
}

// With so many ranks on the node there is no memory for a copy.
INSTANTIATE_TEST_SUITE_P(Memory, ShardTest, testing::Values(1, 2'000'000'000));

}  // namespace
}  // namespace sft::engine
