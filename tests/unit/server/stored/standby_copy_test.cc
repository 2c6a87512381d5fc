#include "server/stored/standby_copy.h"

#include "common/io/sha256.h"
#include "server/blob/blob_store.h"
#include "server/store/generation.h"
#include "server/stored/backup.h"
#include "server/stored/backup_folder.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

// The backups of a server in this process, with faults.
class NearSource : public StandbySource {
 public:
  NearSource(Store& store, Clock& clock, const std::string& data_dir)
      : backups_(store, clock, data_dir) {}

  absl::Status Fetch(const std::string& folder) override {
    v1::BackupRequest request;
    request.set_listed(true);
    request.set_download(true);
    SFT_ASSIGN_OR_RETURN(const v1::BackupResult made,
                         backups_.Make(request, [](int64_t, int64_t) { return true; }));
    for (const char* name : {kDatabase, kManifest}) {
      SFT_ASSIGN_OR_RETURN(const std::string bytes, io::ReadFile(made.path() + name));
      SFT_RETURN_IF_ERROR(io::WriteFileAtomic(folder + name, bytes));
    }
    if (after_fetch) after_fetch();
    return io::RemoveAll(made.path());
  }
  absl::Status ReadFile(const std::string& path, int64_t offset, const std::string& sha256_before,
                        const Sink& sink) override {
    asked.push_back(path);
    if (reads_left-- <= 0) return Unavailable("the line is cut");
    v1::ReadFileRequest request;
    request.set_path(path);
    request.set_offset(offset);
    request.set_sha256_before(sha256_before);
    absl::Status taken;
    SFT_RETURN_IF_ERROR(backups_.ReadFile(request, [&](const v1::ReadFileResponse& piece) {
      bytes += static_cast<int64_t>(piece.data().size());
      taken = sink(piece.offset(), piece.data());
      return taken.ok();
    }));
    return taken;
  }

  std::vector<std::string> asked;
  int64_t bytes = 0;
  int reads_left = 1000;
  std::function<void()> after_fetch;

 private:
  Backups backups_;
};

class StandbyCopyTest : public FleetTest {
 protected:
  StandbyCopyTest() : there_(io::MakeTempDir("standby-test").value()) {
    source_ = std::make_unique<NearSource>(*store_, clock_, dir_);
    copy_ = StandbyCopy::Open(there_, "first:7070", *source_, clock_).value();
  }
  ~StandbyCopyTest() override { (void)io::RemoveAll(there_); }

  void Add(const std::string& path, const std::string& content) {
    const std::string to = dir_ + "/" + path;
    ASSERT_TRUE(io::MakeDirs(to.substr(0, to.rfind('/'))).ok());
    ASSERT_TRUE(io::WriteFileAtomic(to, content).ok());
  }
  std::string AddBlob(const std::string& content) {
    const std::string path =
        "blobs/" + io::Sha256Hex(content).substr(0, 2) + "/" + io::Sha256Hex(content);
    Add(path, content);
    return path;
  }
  std::string There(const std::string& path) {
    return io::ReadFile(there_ + "/" + path).value_or("(none)");
  }
  StandbyCopy::Round Ship() {
    const absl::StatusOr<StandbyCopy::Round> round = copy_->Ship();
    EXPECT_TRUE(round.ok()) << round.status();
    return round.value_or(StandbyCopy::Round{});
  }
  std::string TakeOver(int64_t above = 0) {
    const auto told = TakeOverDataDir(there_, clock_, above);
    EXPECT_TRUE(told.ok()) << told.status();
    return told.value_or("");
  }
  int64_t GenerationThere() {
    const auto db = Database::OpenToLook(there_ + "/server.db").value();
    return store::GetGeneration(*db).value().number;
  }
  // How many jobs the database there has.
  size_t JobsThere() {
    const auto store = Store::Open({there_ + "/server.db"}).value();
    ChangeHub hub;
    return JobManager(*store, clock_, hub, [] {}).List({}).value().jobs.size();
  }

  const std::string there_;
  std::unique_ptr<NearSource> source_;
  std::unique_ptr<StandbyCopy> copy_;
};

TEST_F(StandbyCopyTest, WhatItTakesOverWithIsTheServerAsOfTheLastCopy) {
  const std::string blob = AddBlob("rows");
  Add("logs/u1/rank-0/00000000000000000000.seg", "hello");
  Add("metrics/job-1/00000000000000000000.seg", "points");
  Submit("CPU", 1);
  Ship();
  EXPECT_TRUE(IsStandby(there_));
  EXPECT_FALSE(io::Exists(there_ + "/server.db")) << "no server starts on it";
  Submit("CPU", 1);
  const int64_t before = UnixMicros(*copy_->begun());
  const std::string told = TakeOver();
  EXPECT_NE(told.find("first:7070"), std::string::npos) << told;
  EXPECT_NE(told.find(FormatUtc(WallTime(std::chrono::microseconds(before)))), std::string::npos)
      << told;
  EXPECT_FALSE(IsStandby(there_));
  EXPECT_EQ(TookOverFrom(there_), "first:7070");
  EXPECT_EQ(JobsThere(), 1u) << "the second came after the copy";
  EXPECT_EQ(There(blob), "rows");
  EXPECT_EQ(There("logs/u1/rank-0/00000000000000000000.seg"), "hello");
  EXPECT_EQ(There("metrics/job-1/00000000000000000000.seg"), "points");
  const int64_t generation = GenerationThere();
  EXPECT_GT(generation, kFirstGeneration);
  TakeOver();
  EXPECT_GT(GenerationThere(), generation) << "a repeat is another generation";
  TakeOver(generation + 100);
  EXPECT_EQ(GenerationThere(), generation + 101);
}

TEST_F(StandbyCopyTest, OnlyWhatIsNewComesAgain) {
  const std::string blob = AddBlob("rows"), log = "logs/u1/rank-0/00000000000000000000.seg";
  Add(log, "begin ");
  Ship();
  source_->asked.clear();
  const StandbyCopy::Round quiet = Ship();
  EXPECT_EQ(source_->asked, std::vector<std::string>());
  EXPECT_EQ(quiet.files, 0);
  source_->bytes = 0;
  Add(log, "begin and more");
  const std::string other = AddBlob("others");
  Ship();
  EXPECT_EQ(source_->bytes, 14) << "the log's end and the new blob";
  EXPECT_EQ(There(log), "begin and more");
  // A curve that was thinned is another file of the same name, and a log's torn end is written
  // anew.
  Add(log, "begun");
  Ship();
  EXPECT_EQ(There(log), "begun");
  Add(log, "bEGUN and so on");
  Ship();
  EXPECT_EQ(There(log), "bEGUN and so on");
  // What the server has removed goes.
  ASSERT_TRUE(io::RemoveAll(dir_ + "/" + blob).ok());
  ASSERT_TRUE(io::RemoveAll(dir_ + "/logs/u1").ok());
  Ship();
  EXPECT_EQ(There(blob), "(none)");
  EXPECT_EQ(There(log), "(none)");
  EXPECT_EQ(There(other), "others");
}

TEST_F(StandbyCopyTest, ABrokenRoundLeavesTheLastCopyAndTheNextGoesOn) {
  Submit("CPU", 1);
  Ship();
  const WallTime first = *copy_->begun();
  Submit("CPU", 1);
  for (int i = 0; i < 5; ++i) AddBlob("blob " + std::to_string(i));
  source_->reads_left = 3;
  clock_.Advance(std::chrono::seconds(10));
  EXPECT_TRUE(absl::IsUnavailable(copy_->Ship().status()));
  EXPECT_EQ(copy_->begun(), first);
  // Another process of the standby.
  copy_ = StandbyCopy::Open(there_, "first:7070", *source_, clock_).value();
  EXPECT_EQ(copy_->begun(), first);
  source_->reads_left = 1000;
  source_->asked.clear();
  Ship();
  EXPECT_EQ(source_->asked.size(), 2u) << "three have come before";
  EXPECT_GT(*copy_->begun(), first);
  source_->reads_left = 0;
  Submit("CPU", 1);
  AddBlob("never");
  EXPECT_FALSE(copy_->Ship().ok());
  TakeOver();
  EXPECT_EQ(JobsThere(), 2u);
}

TEST_F(StandbyCopyTest, WhatTheServerLosesMeanwhileKeepsNothingElseFromBeingCopied) {
  const std::string gone = AddBlob("gone"), bad = AddBlob("bad"), good = AddBlob("good");
  Add(bad, "BAD");
  source_->after_fetch = [&] { (void)io::RemoveAll(dir_ + "/" + gone); };
  const StandbyCopy::Round round = Ship();
  EXPECT_EQ(round.damaged, 1);
  EXPECT_EQ(There(good), "good");
  EXPECT_EQ(There(bad), "(none)");
  const std::string told = TakeOver();
  EXPECT_NE(told.find("2 files that the copy names are missing"), std::string::npos) << told;
}

TEST_F(StandbyCopyTest, AServersFolderIsNoStandbysAndAnEmptyCopyTakesNothingOver) {
  const absl::Status busy = StandbyCopy::Open(dir_, "x:1", *source_, clock_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(busy)) << busy;
  EXPECT_FALSE(IsStandby(dir_));
  EXPECT_TRUE(absl::IsFailedPrecondition(TakeOverDataDir(there_, clock_, 0).status()));
  Ship();
  // Bytes of the copied database that the disk has changed.
  const std::string path = there_ + "/standby/1/server.db";
  std::string bytes = io::ReadFile(path).value();
  bytes[bytes.size() / 2] ^= 1;
  ASSERT_TRUE(io::WriteFileAtomic(path, bytes).ok());
  EXPECT_TRUE(absl::IsDataLoss(TakeOverDataDir(there_, clock_, 0).status()));
  EXPECT_TRUE(IsStandby(there_)) << "it is as it was";
}

TEST_F(StandbyCopyTest, ATakeOverThatWasBrokenOffIsRepeated) {
  Submit("CPU", 1);
  Ship();
  const std::string kept = there_ + ".kept";
  ASSERT_EQ(std::system(("cp -r " + there_ + "/standby " + kept).c_str()), 0);
  TakeOver();
  // As if it had ended before it removed the copy.
  ASSERT_EQ(std::system(("mv " + kept + " " + there_ + "/standby").c_str()), 0);
  const int64_t generation = GenerationThere();
  TakeOver();
  EXPECT_GT(GenerationThere(), generation - 1);
  EXPECT_EQ(JobsThere(), 1u);
}

TEST_F(StandbyCopyTest, OnlyFilesThatAListedBackupNamesAreRead) {
  Add("tls/ca.key", "secret");
  Backups backups(*store_, clock_, dir_);
  v1::ReadFileRequest request;
  for (const char* path : {"tls/ca.key", "server.db", "/etc/passwd", "blobs/../tls/ca.key", "",
                           "blobs", "webhooks/1", "hub-tokens/p"}) {
    request.set_path(path);
    EXPECT_TRUE(absl::IsInvalidArgument(backups.ReadFile(request, [](const v1::ReadFileResponse&) {
      return true;
    }))) << path;
  }
  request.set_path("logs/none");
  EXPECT_TRUE(absl::IsNotFound(
      backups.ReadFile(request, [](const v1::ReadFileResponse&) { return true; })));
  v1::BackupRequest kept;
  kept.set_listed(true);
  EXPECT_TRUE(
      absl::IsInvalidArgument(backups.Make(kept, [](int64_t, int64_t) { return true; }).status()));
}

}  // namespace
}  // namespace sft::server
