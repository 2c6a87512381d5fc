#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <filesystem>
#include <fstream>

#include "client/base/exit_codes.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::HasSubstr;

class DownloadTest : public ::testing::Test {
 protected:
  DownloadTest() : folder_(TestFolder()) {
    server_.artifact.set_name("artifacts/a");
    server_.artifact.set_kind("adapter");
    Add("adapter_config.json", "{}");
    Add("sub/adapter_model.safetensors", std::string(3000, 'w'));
  }

  void Add(const std::string& path, const std::string& content) {
    v1::ArtifactFile* file = server_.artifact.add_files();
    file->set_path(path);
    io::Sha256 hash;
    hash.Update(content);
    file->mutable_blob()->set_sha256(hash.FinishHex());
    file->mutable_blob()->set_size(static_cast<int64_t>(content.size()));
    server_.artifact_files[path] = content;
  }

  const std::string folder_;
  FakeServer server_;
};

TEST_F(DownloadTest, TheFolderHoldsEveryFile) {
  const std::string out = folder_ + "/out";
  const Outcome run = Sftctl(server_, {"download", "job-a", "-o", out});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, out + "\n");
  EXPECT_EQ(ReadTestFile(out + "/adapter_config.json"), "{}");
  EXPECT_EQ(ReadTestFile(out + "/sub/adapter_model.safetensors"), std::string(3000, 'w'));
  EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
}

TEST_F(DownloadTest, WithoutAFolderItIsOneOfTheJobsNameHereWhateverTheJobSays) {
  v1::Job job = MakeJob("job-a", v1::Job::SUCCEEDED);
  job.set_resolved_json("{\"job\": {\"output_dir\": \"" + folder_ + "/mine\"}}");
  server_.jobs["job-a"] = job;
  server_.artifact.set_job("projects/default/jobs/job-a");
  server_.artifact.set_kind("../\x1b[2J");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  const Outcome run = Sftctl(server_, {"download", "job-a"});
  std::filesystem::current_path(before);
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/mine"));
  EXPECT_EQ(ReadTestFile(folder_ + "/job-a-adapter/adapter_config.json"), "{}");
  EXPECT_EQ(run.err.find('\x1b'), std::string::npos);
}

TEST_F(DownloadTest, AFilesNameWithControlCharactersIsRefusedAndShownEscaped) {
  server_.artifact.mutable_files(0)->set_path("a\x1b[2Jb");
  const Outcome run = Sftctl(server_, {"download", "job-a", "-o", folder_ + "/out"});
  EXPECT_NE(run.code, kSucceeded);
  EXPECT_EQ(run.err.find('\x1b'), std::string::npos) << run.err;
  EXPECT_THAT(run.err, HasSubstr("a\\x1b[2Jb"));
}

TEST_F(DownloadTest, WhatABrokenOneLeftIsContinued) {
  const std::string out = folder_ + "/out";
  std::filesystem::create_directories(out + ".partial/sub");
  std::ofstream(out + ".partial/sub/adapter_model.safetensors") << std::string(1000, 'w');
  const Outcome run = Sftctl(server_, {"download", "job-a", "-o", out});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(ReadTestFile(out + "/sub/adapter_model.safetensors"), std::string(3000, 'w'));
}

TEST_F(DownloadTest, ASecondOneIntoTheSameFolderIsRefusedAndTakesNothingAway) {
  const std::string out = folder_ + "/out";
  std::filesystem::create_directories(out + ".partial");
  std::ofstream(out + ".partial/adapter_config.json") << "{";
  const io::UniqueFd first(::open((out + ".partial").c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(::flock(first.get(), LOCK_EX | LOCK_NB), 0);
  const Outcome second = Sftctl(server_, {"download", "job-a", "-o", out});
  EXPECT_EQ(second.code, kRefused);
  EXPECT_THAT(second.err, HasSubstr("another download writes into " + out + ".partial"));
  EXPECT_EQ(ReadTestFile(out + ".partial/adapter_config.json"), "{");
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_F(DownloadTest, ASlashAtTheEndIsTheSameFolder) {
  const std::string out = folder_ + "/out";
  const Outcome run = Sftctl(server_, {"download", "job-a", "-o", out + "/"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(ReadTestFile(out + "/adapter_config.json"), "{}");
}

TEST_F(DownloadTest, WrongBytesAreNotDelivered) {
  server_.artifact_files["sub/adapter_model.safetensors"] = std::string(3000, 'x');
  const std::string out = folder_ + "/out";
  const Outcome run = Sftctl(server_, {"download", "job-a", "-o", out});
  EXPECT_EQ(run.code, kInternal);
  EXPECT_THAT(run.err, HasSubstr("hash"));
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_F(DownloadTest, APathOutsideTheFolderIsRefused) {
  Add("../evil", "x");
  const Outcome run = Sftctl(server_, {"download", "job-a", "-o", folder_ + "/out"});
  EXPECT_EQ(run.code, kUsage);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/evil"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/out"));
}

TEST_F(DownloadTest, AFolderWithFilesIsLeftAlone) {
  std::filesystem::create_directories(folder_ + "/out");
  std::ofstream(folder_ + "/out/mine") << "mine";
  const Outcome run = Sftctl(server_, {"download", "job-a", "-o", folder_ + "/out"});
  EXPECT_EQ(run.code, kUsage);
  EXPECT_THAT(run.err, HasSubstr("not an empty folder"));
  EXPECT_EQ(ReadTestFile(folder_ + "/out/mine"), "mine");
}

TEST_F(DownloadTest, AJobWithoutResultIsNotFound) {
  server_.artifact.clear_name();
  EXPECT_EQ(Sftctl(server_, {"download", "job-a", "-o", folder_ + "/out"}).code, kNotFound);
}

TEST_F(DownloadTest, AFolderThatCannotBeMadeIsAWrongCommandLine) {
  const Outcome run = Sftctl(server_, {"download", "job-a", "-o", "/proc/nope"});
  EXPECT_EQ(run.code, kUsage);
  EXPECT_THAT(run.err, HasSubstr("choose another folder with -o"));
}

}  // namespace
}  // namespace sft::client
