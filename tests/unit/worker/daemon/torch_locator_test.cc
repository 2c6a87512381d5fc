#include "worker/daemon/torch_locator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace sft::worker {
namespace {

namespace fs = std::filesystem;

class TorchLocatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Tests run beside each other.
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(::testing::TempDir()) / (std::string("torch_locator_") + test->name());
    fs::remove_all(root_);
    fs::create_directories(root_ / "torch/lib");
    std::ofstream(root_ / "torch/lib/libtorch_cpu.so");
  }
  void TearDown() override { fs::remove_all(root_); }

  fs::path root_;
};

TEST_F(TorchLocatorTest, TheFolderOfTorchIsEnoughWhereNoWheelsLieBesideIt) {
  EXPECT_EQ(LocateTorch("/bin/true", root_ / "torch").value(), root_ / "torch/lib");
}

// The CUDA plugin needs libraries of these itself: LibTorch's own way to them is not the plugin's.
TEST_F(TorchLocatorTest, TheCudaLibrariesOfTheWheelsAreOnThePath) {
  fs::create_directories(root_ / "nvidia/cu13/lib");
  fs::create_directories(root_ / "nvidia/cudnn/lib");
  fs::create_directories(root_ / "nvidia/headers_only/include");
  const std::string lib = root_ / "torch/lib";
  EXPECT_EQ(LocateTorch("/bin/true", root_ / "torch").value(),
            lib + ":" + lib + "/../../nvidia/cu13/lib:" + lib + "/../../nvidia/cudnn/lib");
}

TEST_F(TorchLocatorTest, AFolderWithoutTorchIsNamed) {
  EXPECT_THAT(std::string(LocateTorch("/bin/true", root_ / "nvidia").status().message()),
              ::testing::HasSubstr("no lib/libtorch_cpu.so below it"));
}

}  // namespace
}  // namespace sft::worker
