#include "worker/engine/checkpoint/safetensors_writer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

using ::testing::HasSubstr;

// While it lives, files of this process end at `bytes`, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    previous_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &previous_);
    const rlimit limit{bytes, previous_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &previous_);
    std::signal(SIGXFSZ, previous_handler_);
  }

 private:
  rlimit previous_{};
  void (*previous_handler_)(int);
};

TEST(SafetensorsWriterTest, WhatIsWrittenIsReadBackInEveryType) {
  const TempDir dir;
  std::vector<NamedTensor> tensors;
  for (const auto type : {at::kByte, at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong,
                          at::kInt, at::kShort, at::kChar, at::kBool}) {
    tensors.push_back({std::string("t.") + c10::toString(type),
                       at::arange(15, at::kLong).remainder(2).to(type).view({3, 5})});
  }
  tensors.push_back({"scalar \"quoted\"", at::tensor(2.5f).view({})});
  tensors.push_back({"empty", at::zeros({0, 4})});
  WriteSafetensors(dir / "m.safetensors", tensors, {{"step", "7"}});
  const auto file = SafetensorsFile::Open(dir / "m.safetensors");
  EXPECT_EQ(file->tensors().size(), tensors.size());
  EXPECT_EQ(file->metadata().at("format"), "pt");
  EXPECT_EQ(file->metadata().at("step"), "7");
  for (const NamedTensor& named : tensors) {
    EXPECT_TRUE(file->View(named.name).equal(named.tensor)) << named.name;
    EXPECT_EQ(file->View(named.name).scalar_type(), named.tensor.scalar_type());
    // Aligned: no copy is made, so that two views are one memory.
    EXPECT_EQ(file->View(named.name).const_data_ptr(), file->View(named.name).const_data_ptr());
  }
  EXPECT_EQ(Listing(dir.path()), "m.safetensors");
}

TEST(SafetensorsWriterTest, PartsArriveInAnyOrderAndAreConverted) {
  const TempDir dir;
  const at::Tensor whole = at::arange(12, at::kFloat).view({3, 4});
  SafetensorsWriter writer(dir / "m", {{.name = "w", .dtype = at::kBFloat16, .shape = {3, 4}}});
  writer.WriteRange("w", 7, whole.view(-1).narrow(0, 7, 5));
  EXPECT_EQ(Listing(dir.path()), "m.partial");
  writer.WriteRange("w", 0, whole.view(-1).narrow(0, 0, 7));
  writer.Commit();
  EXPECT_TRUE(SafetensorsFile::Open(dir / "m")->View("w").equal(whole.to(at::kBFloat16)));
  EXPECT_EQ(Listing(dir.path()), "m");
}

TEST(SafetensorsWriterTest, StridedTensorsAreWrittenInTheirOwnOrder) {
  const TempDir dir;
  const at::Tensor turned = at::arange(6, at::kFloat).view({2, 3}).t();
  WriteSafetensors(dir / "m", std::vector<NamedTensor>{{"w", turned}});
  EXPECT_TRUE(SafetensorsFile::Open(dir / "m")->View("w").equal(turned));
}

TEST(SafetensorsWriterTest, WithoutCommitNothingStaysAndTheOldFileIsKept) {
  const TempDir dir;
  PutFile(dir / "m", "old");
  {
    SafetensorsWriter writer(dir / "m", {{.name = "w", .shape = {2}}, {.name = "x", .shape = {1}}});
    writer.Write("w", at::zeros({2}));
    try {
      writer.Commit();
      FAIL();
    } catch (const InternalError& error) {
      EXPECT_THAT(error.what(), HasSubstr("0 of 1 elements of \"x\""));
    }
  }
  EXPECT_EQ(Listing(dir.path()), "m");
  EXPECT_EQ(GetFile(dir / "m"), "old");
}

TEST(SafetensorsWriterTest, RefusesWhatWasNotAnnounced) {
  const TempDir dir;
  SafetensorsWriter writer(dir / "m", {{.name = "w", .shape = {2}}});
  EXPECT_THROW(writer.Write("x", at::zeros({2})), InternalError);
  EXPECT_THROW(writer.Write("w", at::zeros({3})), InternalError);
  EXPECT_THROW(writer.WriteRange("w", 1, at::zeros({2})), InternalError);
  writer.Write("w", at::zeros({2}));
  EXPECT_THROW(writer.Write("w", at::zeros({2})), InternalError);
  EXPECT_THROW(SafetensorsWriter(dir / "n", {{.name = "a"}, {.name = "a"}}), InternalError);
}

TEST(SafetensorsWriterTest, AFullDiskSaysSoAndLeavesNothingBehind) {
  const TempDir dir;
  const FileSizeLimit limit(4096);
  try {
    WriteSafetensors(dir / "big", std::vector<NamedTensor>{{"w", at::zeros({5000})}});
    FAIL() << "20,000 bytes were written past the limit";
  } catch (const InfrastructureError& error) {
    EXPECT_EQ(error.code(), "disk_full");
    EXPECT_THAT(error.what(), HasSubstr((dir / "big").string()));
    EXPECT_THAT(error.what(), HasSubstr("bytes are free"));
    EXPECT_THAT(error.what(), HasSubstr("are needed"));
    EXPECT_THAT(error.advice(), HasSubstr("Free space"));
  }
  EXPECT_EQ(Listing(dir.path()), "");
}

TEST(SafetensorsWriterTest, AFolderThatIsMissingIsADiskErrorWithItsPath) {
  const TempDir dir;
  try {
    WriteSafetensors(dir / "none/m", std::vector<NamedTensor>{{"w", at::zeros({5})}});
    FAIL();
  } catch (const InfrastructureError& error) {
    EXPECT_THAT(error.what(), HasSubstr("none/m"));
    EXPECT_EQ(error.code(), "disk_error");
  }
}

TEST(StagedDirectoryTest, AppearsWholeAndReplacesTheOldOne) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "out");
  PutFile(dir / "out/stale", "old");
  {
    StagedDirectory staged(dir / "out/");
    PutFile(staged.path() / "new", "1");
    EXPECT_EQ(Listing(dir / "out"), "stale");
    staged.Commit();
  }
  EXPECT_EQ(Listing(dir.path()), "out");
  EXPECT_EQ(Listing(dir / "out"), "new");
}

TEST(StagedDirectoryTest, WithoutCommitTheOldOneStays) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "out");
  PutFile(dir / "out/kept", "old");
  {
    StagedDirectory staged(dir / "out");
    PutFile(staged.path() / "new", "1");
  }
  EXPECT_EQ(Listing(dir.path()), "out");
  EXPECT_EQ(Listing(dir / "out"), "kept");
}

}  // namespace
}  // namespace sft::engine
