#include "server/stored/backup.h"

#include <sys/stat.h>

#include "common/io/sha256.h"
#include "server/blob/blob_store.h"
#include "server/core/generation.h"
#include "server/store/checkpoints.h"
#include "server/stored/restore.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

class BackupTest : public FleetTest {
 protected:
  BackupTest() : target_(io::MakeTempDir("backup-test").value()) {}
  ~BackupTest() override { (void)io::RemoveAll(target_); }

  static v1::BackupRequest To(const std::string& folder) {
    v1::BackupRequest request;
    request.set_to(folder);
    return request;
  }
  absl::StatusOr<v1::BackupResult> Make(const v1::BackupRequest& request) {
    return Backups(*store_, clock_, dir_).Make(request, [](int64_t, int64_t) { return true; });
  }
  absl::StatusOr<v1::BackupResult> Make(const std::string& to) { return Make(To(to)); }
  static unsigned ModeOf(const std::string& path) {
    struct stat info {};
    EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
    return info.st_mode & 0777;
  }
  // Writes a file below the server's data folder.
  void AddFile(const std::string& path, const std::string& content) {
    ASSERT_TRUE(io::MakeDirs((dir_ + "/" + path).substr(0, (dir_ + "/" + path).rfind('/'))).ok());
    ASSERT_TRUE(io::WriteFileAtomic(dir_ + "/" + path, content).ok());
  }
  void AddBlob(const std::string& content) {
    const std::string hash = io::Sha256Hex(content);
    ASSERT_TRUE(io::MakeDirs(dir_ + "/blobs/" + hash.substr(0, 2)).ok());
    ASSERT_TRUE(
        io::WriteFileAtomic(dir_ + "/blobs/" + hash.substr(0, 2) + "/" + hash, content).ok());
  }

  // Adds a checkpoint of a job; returns the hash of its only file.
  std::string AddCheckpoint(const std::string& content) {
    const std::string hash = io::Sha256Hex(content);
    const std::string path = BlobStore::PathIn(dir_ + "/checkpoints", hash);
    EXPECT_TRUE(io::MakeDirs(path.substr(0, path.rfind('/'))).ok());
    EXPECT_TRUE(io::WriteFileAtomic(path, content).ok());
    Join("a", "CPU", 1);
    CheckpointRecord checkpoint;
    checkpoint.job_id = Submit("CPU", 1);
    Tick();
    checkpoint.attempt_uid = Uid(checkpoint.job_id);
    checkpoint.step = 10;
    checkpoint.created_us = 1;
    const int64_t size = static_cast<int64_t>(content.size());
    EXPECT_TRUE(store_
                    ->Write([&](Database& db) {
                      return store::PutCheckpointPart(db, checkpoint, {.node = "a"},
                                                      {{"rank-0", hash, size}}, 1)
                          .status();
                    })
                    .ok());
    return hash;
  }

  const std::string target_;
};

TEST_F(BackupTest, ARestoredFolderIsTheServerAsItWas) {
  AddBlob("some data");
  const std::string job = Submit("CPU", 1);
  const auto made = Make(target_ + "/b");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->blobs(), 1);
  EXPECT_EQ(made->blob_bytes(), 9);
  Submit("CPU", 1);  // later
  ASSERT_TRUE(io::MakeDirs(dir_ + "/tls").ok());
  ASSERT_TRUE(io::WriteFileAtomic(dir_ + "/tls/ca.key", "secret", io::kPrivateMode).ok());
  const auto told = RestoreBackup(target_ + "/b", target_ + "/new", dir_, clock_);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_NE(told->find("taken 1, missing 0"), std::string::npos) << *told;
  struct stat key {};
  ASSERT_EQ(stat((target_ + "/new/tls/ca.key").c_str(), &key), 0);
  EXPECT_EQ(key.st_mode & 0777, 0600u);
  Halt();
  store_ = Store::Open({target_ + "/new/server.db"}).value();
  jobs_ = std::make_unique<JobManager>(*store_, clock_, hub_, [] {});
  EXPECT_EQ(jobs_->List({}).value().jobs.size(), 1u);
  EXPECT_EQ(State(job), v1::Job::PENDING);
  EXPECT_GT(Generation::Load(*store_, std::nullopt).value()->number(), 1)
      << "workers do not obey the server that it replaces";
}

TEST_F(BackupTest, CheckpointsAreInTheCopyAndOutliveThoseOfTheServer) {
  const std::string hash = AddCheckpoint("training state");
  const auto made = Make(target_ + "/b");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->checkpoint_blobs(), 1);
  EXPECT_EQ(made->checkpoint_bytes(), 14);
  ASSERT_TRUE(io::RemoveAll(dir_ + "/checkpoints").ok());
  const auto told = RestoreBackup(target_ + "/b", target_ + "/new", dir_, clock_);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_NE(told->find("of checkpoints there 0, taken 1, missing 0"), std::string::npos) << *told;
  EXPECT_EQ(io::ReadFile(BlobStore::PathIn(target_ + "/new/checkpoints", hash)).value(),
            "training state");
}

TEST_F(BackupTest, ACheckpointDeletedMeanwhileIsLeftOut) {
  AddCheckpoint("training state");
  ASSERT_TRUE(io::RemoveAll(dir_ + "/checkpoints").ok());
  const auto made = Make(target_ + "/b");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->checkpoint_blobs(), 0);
}

TEST_F(BackupTest, OnlyItsOwnerMayReadIt) {
  AddCheckpoint("training state");
  ASSERT_TRUE(Make(target_ + "/b").ok());
  ASSERT_TRUE(RestoreBackup(target_ + "/b", target_ + "/new", "", clock_).ok());
  EXPECT_EQ(ModeOf(target_ + "/b"), 0700u);
  EXPECT_EQ(ModeOf(target_ + "/b/server.db"), 0600u);
  EXPECT_EQ(ModeOf(target_ + "/b/manifest.json"), 0600u);
  EXPECT_EQ(ModeOf(target_ + "/new"), 0700u);
  EXPECT_EQ(ModeOf(target_ + "/new/server.db"), 0600u);
}

TEST_F(BackupTest, ItHoldsAllThatARestoreNeeds) {
  AddBlob("some data");
  AddFile("logs/attempt-1/rank-0/00000000000000000000.seg", "a line");
  AddFile("metrics/job-1/points.seg", "a curve");
  AddFile("tls/ca.key", "secret");
  v1::BackupRequest request = To(target_ + "/b");
  request.set_with_keys(true);
  request.set_with_blobs(true);
  const auto made = Make(request);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(made->has_keys());
  EXPECT_TRUE(made->has_blobs());
  EXPECT_EQ(made->log_bytes(), 13);
  EXPECT_EQ(made->left_out_size(), 0) << made->left_out(0);
  EXPECT_EQ(ModeOf(target_ + "/b/tls"), 0700u);
  EXPECT_EQ(ModeOf(target_ + "/b/tls/ca.key"), 0600u);

  const std::string restored = target_ + "/new";
  const auto told = RestoreBackup(target_ + "/b", restored, "", clock_);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_NE(told->find("files there 0, taken 1, missing 0"), std::string::npos) << *told;
  EXPECT_EQ(told->find("without"), std::string::npos) << *told;
  for (const auto& [path, content] : std::vector<std::pair<std::string, std::string>>{
           {"logs/attempt-1/rank-0/00000000000000000000.seg", "a line"},
           {"metrics/job-1/points.seg", "a curve"},
           {"tls/ca.key", "secret"}}) {
    EXPECT_EQ(io::ReadFile(restored + "/" + path).value_or("missing"), content) << path;
  }
  EXPECT_EQ(io::ReadFile(BlobStore::PathIn(restored + "/blobs", io::Sha256Hex("some data")))
                .value_or("missing"),
            "some data");
  EXPECT_EQ(ModeOf(restored + "/tls/ca.key"), 0600u);
}

TEST_F(BackupTest, WhatIsLeftOutIsTold) {
  AddBlob("some data");
  AddFile("logs/attempt-1/rank-0/00000000000000000000.seg", "a line");
  AddFile("tls/ca.key", "secret");
  AddCheckpoint("training state");
  ASSERT_TRUE(io::RemoveAll(dir_ + "/checkpoints").ok());
  v1::BackupRequest request = To(target_ + "/b");
  request.set_without_logs(true);
  const auto made = Make(request);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(std::vector<std::string>(made->left_out().begin(), made->left_out().end()),
            (std::vector<std::string>{
                "1 files of checkpoints that the server no longer has",
                "1 files of data sets and adapters, 9 B, in blobs/ (--with-blobs takes them)",
                "logs/ (--without-logs)", "the fleet's keys in tls/ (--with-keys takes them)"}));
  EXPECT_FALSE(io::Exists(target_ + "/b/tls"));
  const auto told = RestoreBackup(target_ + "/b", target_ + "/new", "", clock_);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_NE(told->find("the backup was made without: 1 files of checkpoints"), std::string::npos)
      << *told;
}

// A log that is newer than the backup's is taken whole, never mixed with it.
TEST_F(BackupTest, ARestoreTakesALogWholeFromTheFolderThatIsNamed) {
  AddFile("logs/attempt-1/rank-0/00000000000000000000.seg", "a line");
  AddFile("logs/attempt-2/rank-0/00000000000000000000.seg", "of another");
  ASSERT_TRUE(Make(target_ + "/b").ok());
  AddFile("logs/attempt-1/rank-0/00000000000000000000.seg", "a line and more");
  ASSERT_TRUE(io::RemoveAll(dir_ + "/logs/attempt-2").ok());
  ASSERT_TRUE(RestoreBackup(target_ + "/b", target_ + "/new", dir_, clock_).ok());
  EXPECT_EQ(io::ReadFile(target_ + "/new/logs/attempt-1/rank-0/00000000000000000000.seg").value(),
            "a line and more");
  EXPECT_EQ(io::ReadFile(target_ + "/new/logs/attempt-2/rank-0/00000000000000000000.seg").value(),
            "of another");
}

TEST_F(BackupTest, ASecondOneToTheSamePlaceIsRefusedAndDoesNotDisturbTheFirst) {
  Backups backups(*store_, clock_, dir_);
  const auto wanted = [](int64_t, int64_t) { return true; };
  absl::Status second = Internal("not run");
  const auto made = backups.Make(To(target_ + "/b"), [&](int64_t, int64_t) {
    second = backups.Make(To(target_ + "/./b/"), wanted).status();
    return true;
  });
  EXPECT_TRUE(absl::IsAborted(second)) << second;
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(RestoreBackup(target_ + "/b", target_ + "/new", "", clock_).ok());
  EXPECT_TRUE(backups.Make(To(target_ + "/c"), wanted).ok());
}

TEST_F(BackupTest, MissingFilesAreReported) {
  AddBlob("some data");
  ASSERT_TRUE(Make(target_ + "/b").ok());
  const auto told = RestoreBackup(target_ + "/b", target_ + "/new", "", clock_);
  EXPECT_NE(told->find("curves and logs of before are not there"), std::string::npos);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_NE(told->find("missing 1"), std::string::npos) << *told;
  EXPECT_NE(told->find("manifest.json lists them"), std::string::npos) << *told;
}

TEST_F(BackupTest, AnExistingFolderOrOneInUseIsRefused) {
  ASSERT_TRUE(Make(target_ + "/b").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Make(target_ + "/b").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Make("relative").status()));
  ASSERT_TRUE(RestoreBackup(target_ + "/b", target_ + "/new", "", clock_).ok());
  const absl::Status again = RestoreBackup(target_ + "/b", target_ + "/new", "", clock_).status();
  EXPECT_TRUE(absl::IsAlreadyExists(again)) << again;
}

TEST_F(BackupTest, ADamagedOrNewerBackupIsRefused) {
  ASSERT_TRUE(Make(target_ + "/b").ok());
  const std::string manifest = io::ReadFile(target_ + "/b/manifest.json").value();
  std::string newer = manifest;
  newer.replace(newer.find("\"schema\": "), 10, "\"schema\": 99");
  ASSERT_TRUE(io::WriteFileAtomic(target_ + "/b/manifest.json", newer).ok());
  const absl::Status refused = RestoreBackup(target_ + "/b", target_ + "/new", "", clock_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  ASSERT_TRUE(io::WriteFileAtomic(target_ + "/b/manifest.json", "{}").ok());
  EXPECT_TRUE(
      absl::IsDataLoss(RestoreBackup(target_ + "/b", target_ + "/new", "", clock_).status()));
  ASSERT_TRUE(io::WriteFileAtomic(target_ + "/b/manifest.json", manifest).ok());
  io::AppendFile database = io::AppendFile::Open(target_ + "/b/server.db").value();
  ASSERT_TRUE(database.Append("x").ok());
  const absl::Status damaged = RestoreBackup(target_ + "/b", target_ + "/new", "", clock_).status();
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_FALSE(io::Exists(target_ + "/new/server.db"));
}

TEST_F(BackupTest, AnAbandonedBackupLeavesNothing) {
  const auto made = Backups(*store_, clock_, dir_).Make(To(target_ + "/b"), [](int64_t, int64_t) {
    return false;
  });
  EXPECT_TRUE(absl::IsCancelled(made.status())) << made.status();
  EXPECT_TRUE(io::ListDir(target_)->empty());
  EXPECT_FALSE(Submit("CPU", 1).empty()) << "the database goes on";
}

}  // namespace
}  // namespace sft::server
