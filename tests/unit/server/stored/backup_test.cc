#include "server/stored/backup.h"

#include <sys/stat.h>

#include "common/io/sha256.h"
#include "server/blob/blob_store.h"
#include "server/store/checkpoints.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

class BackupTest : public FleetTest {
 protected:
  BackupTest() : target_(io::MakeTempDir("backup-test").value()) {}
  ~BackupTest() override { (void)io::RemoveAll(target_); }

  absl::StatusOr<v1::BackupResult> Make(const std::string& to) {
    return Backups(*store_, clock_, dir_).Make(to, [](int64_t, int64_t) { return true; });
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
  const auto told = RestoreBackup(target_ + "/b", target_ + "/new", dir_);
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
}

TEST_F(BackupTest, CheckpointsAreInTheCopyAndOutliveThoseOfTheServer) {
  const std::string hash = AddCheckpoint("training state");
  const auto made = Make(target_ + "/b");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->checkpoint_blobs(), 1);
  EXPECT_EQ(made->checkpoint_bytes(), 14);
  ASSERT_TRUE(io::RemoveAll(dir_ + "/checkpoints").ok());
  const auto told = RestoreBackup(target_ + "/b", target_ + "/new", dir_);
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
  ASSERT_TRUE(RestoreBackup(target_ + "/b", target_ + "/new", "").ok());
  const auto mode_of = [](const std::string& path) {
    struct stat info {};
    EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
    return info.st_mode & 0777;
  };
  EXPECT_EQ(mode_of(target_ + "/b"), 0700u);
  EXPECT_EQ(mode_of(target_ + "/b/server.db"), 0600u);
  EXPECT_EQ(mode_of(target_ + "/b/manifest.json"), 0600u);
  EXPECT_EQ(mode_of(target_ + "/new"), 0700u);
  EXPECT_EQ(mode_of(target_ + "/new/server.db"), 0600u);
}

TEST_F(BackupTest, ASecondOneToTheSamePlaceIsRefusedAndDoesNotDisturbTheFirst) {
  Backups backups(*store_, clock_, dir_);
  const auto wanted = [](int64_t, int64_t) { return true; };
  absl::Status second = Internal("not run");
  const auto made = backups.Make(target_ + "/b", [&](int64_t, int64_t) {
    second = backups.Make(target_ + "/./b/", wanted).status();
    return true;
  });
  EXPECT_TRUE(absl::IsAborted(second)) << second;
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(RestoreBackup(target_ + "/b", target_ + "/new", "").ok());
  EXPECT_TRUE(backups.Make(target_ + "/c", wanted).ok());
}

TEST_F(BackupTest, MissingFilesAreReported) {
  AddBlob("some data");
  ASSERT_TRUE(Make(target_ + "/b").ok());
  const auto told = RestoreBackup(target_ + "/b", target_ + "/new", "");
  EXPECT_NE(told->find("curves and logs of before are not there"), std::string::npos);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_NE(told->find("missing 1"), std::string::npos) << *told;
  EXPECT_NE(told->find("manifest.json lists them"), std::string::npos) << *told;
}

TEST_F(BackupTest, AnExistingFolderOrOneInUseIsRefused) {
  ASSERT_TRUE(Make(target_ + "/b").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Make(target_ + "/b").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Make("relative").status()));
  ASSERT_TRUE(RestoreBackup(target_ + "/b", target_ + "/new", "").ok());
  const absl::Status again = RestoreBackup(target_ + "/b", target_ + "/new", "").status();
  EXPECT_TRUE(absl::IsAlreadyExists(again)) << again;
}

TEST_F(BackupTest, ADamagedOrNewerBackupIsRefused) {
  ASSERT_TRUE(Make(target_ + "/b").ok());
  const std::string manifest = io::ReadFile(target_ + "/b/manifest.json").value();
  std::string newer = manifest;
  newer.replace(newer.find("\"schema\": "), 10, "\"schema\": 99");
  ASSERT_TRUE(io::WriteFileAtomic(target_ + "/b/manifest.json", newer).ok());
  const absl::Status refused = RestoreBackup(target_ + "/b", target_ + "/new", "").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  ASSERT_TRUE(io::WriteFileAtomic(target_ + "/b/manifest.json", "{}").ok());
  EXPECT_TRUE(absl::IsDataLoss(RestoreBackup(target_ + "/b", target_ + "/new", "").status()));
  ASSERT_TRUE(io::WriteFileAtomic(target_ + "/b/manifest.json", manifest).ok());
  io::AppendFile database = io::AppendFile::Open(target_ + "/b/server.db").value();
  ASSERT_TRUE(database.Append("x").ok());
  const absl::Status damaged = RestoreBackup(target_ + "/b", target_ + "/new", "").status();
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_FALSE(io::Exists(target_ + "/new/server.db"));
}

TEST_F(BackupTest, AnAbandonedBackupLeavesNothing) {
  const auto made =
      Backups(*store_, clock_, dir_).Make(target_ + "/b", [](int64_t, int64_t) { return false; });
  EXPECT_TRUE(absl::IsCancelled(made.status())) << made.status();
  EXPECT_TRUE(io::ListDir(target_)->empty());
  EXPECT_FALSE(Submit("CPU", 1).empty()) << "the database goes on";
}

}  // namespace
}  // namespace sft::server
