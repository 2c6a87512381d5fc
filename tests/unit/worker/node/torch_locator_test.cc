#include "worker/node/torch_locator.h"

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
    // Tests run in parallel.
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
  EXPECT_EQ(LocateTorch("/bin/true", root_ / "torch").value().library_path, root_ / "torch/lib");
}

// The CUDA plugin needs these libraries itself: LibTorch's search path does not apply to it.
TEST_F(TorchLocatorTest, TheCudaLibrariesOfTheWheelsAreOnThePath) {
  fs::create_directories(root_ / "nvidia/cu13/lib");
  fs::create_directories(root_ / "nvidia/cudnn/lib");
  fs::create_directories(root_ / "nvidia/headers_only/include");
  const std::string lib = root_ / "torch/lib";
  EXPECT_EQ(LocateTorch("/bin/true", root_ / "torch").value().library_path,
            lib + ":" + lib + "/../../nvidia/cu13/lib:" + lib + "/../../nvidia/cudnn/lib");
}

class RankProgramTest : public TorchLocatorTest {
 protected:
  // The error for a rank program with this behaviour.
  std::string Said(const std::string& script) {
    const std::string path = root_ / "sft-rank";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(path, fs::perms::owner_all);
    return std::string(LocateTorch(path, root_ / "torch").status().message());
  }
};

TEST_F(RankProgramTest, ThatWasKilledIsNotBlamedOnTorch) {
  const std::string said = Said("echo one; echo two >&2; kill -9 $$");
  EXPECT_THAT(said, ::testing::HasSubstr("sft-rank --version` was killed by signal 9 (Killed)"));
  EXPECT_THAT(said, ::testing::HasSubstr("one / two"));
  EXPECT_THAT(said, ::testing::HasSubstr("dmesg"));
  EXPECT_THAT(said, ::testing::Not(::testing::HasSubstr("--torch")));
  const auto alone = LocateTorch(root_ / "sft-rank", "");
  EXPECT_THAT(std::string(alone.status().message()),
              ::testing::Not(::testing::HasSubstr("python3")));
}

TEST_F(RankProgramTest, ThatLacksALibrarySaysWhich) {
  const std::string said =
      Said("echo 'sft-rank: error while loading shared libraries: libtorch.so' >&2; exit 127");
  EXPECT_THAT(said, ::testing::HasSubstr("ended with exit code 127"));
  EXPECT_THAT(said, ::testing::HasSubstr("libtorch.so; it lacks that library"));
  EXPECT_THAT(said, ::testing::HasSubstr("--torch DIR"));
}

TEST_F(RankProgramTest, SaysItsBuild) {
  const auto build = [&](const std::string& script) {
    Said(script);
    return LocateTorch(root_ / "sft-rank", root_ / "torch").value().build;
  };
  EXPECT_EQ(build("echo 'sft-rank 0.1.0 (build 664b20f7)'"), "0.1.0 (build 664b20f7)");
  EXPECT_EQ(build("echo 'a warning about sft-rank first' >&2; echo 'sft-rank 1.0'; echo more"),
            "1.0");
  EXPECT_EQ(build("echo something else"), "");
  EXPECT_EQ(build(":"), "");
}

TEST_F(TorchLocatorTest, AFolderWithoutTorchIsNamed) {
  EXPECT_THAT(std::string(LocateTorch("/bin/true", root_ / "nvidia").status().message()),
              ::testing::HasSubstr("no lib/libtorch_cpu.so below it"));
}

}  // namespace
}  // namespace sft::worker
