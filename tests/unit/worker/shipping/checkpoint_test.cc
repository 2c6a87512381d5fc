// Checkpoints on a node: registering, uploading, staging for a resume, cleaning.

#include <sys/stat.h>
#include <unistd.h>

#include <limits>

#include "common/io/sha256.h"
#include "tests/unit/worker/base/test_node.h"
#include "tests/unit/worker/transfer/fake_server.h"
#include "worker/shipping/checkpoint_shipper.h"
#include "worker/transfer/checkpoint_folder.h"

namespace sft::worker {
namespace {

using Lines = std::vector<std::string>;

class CheckpointTest : public TestNode {
 protected:
  CheckpointShipper Shipper(int64_t registered = 0) {
    return CheckpointShipper({"a-1", 2, "job-1"}, setup_, server_, clock_, registered, Hooks());
  }
  // A shipper in a gang that has other nodes too.
  CheckpointShipper ShipperOfPart() {
    return CheckpointShipper({"a-1", 2, "job-1", /*whole=*/false}, setup_, server_, clock_, 0,
                             Hooks());
  }
  CheckpointShipper::Hooks Hooks() {
    return {[this](int64_t step) { registered_.push_back(step); }, [this] { return away_; }, [] {}};
  }
  // Writes a checkpoint as a rank does.
  channel::CheckpointEvent Save(int64_t step, const std::string& content = "state") {
    channel::CheckpointEvent event;
    event.step = step;
    event.path = CheckpointDir("job-1", setup_) + "/step-" + std::to_string(step);
    Write(event.path + "/rank-0-of-1.safetensors", content);
    Write(event.path + "/manifest.json", "{}");
    event.bytes = static_cast<int64_t>(content.size()) + 2;
    event.reason = "steps";
    return event;
  }
  void AddFile(v1::Resume& resume, const std::string& path, const std::string& content) {
    v1::ArtifactFile& file = *resume.add_files();
    file.set_path(path);
    file.mutable_blob()->set_sha256(io::Sha256Hex(content));
    file.mutable_blob()->set_size(static_cast<int64_t>(content.size()));
    server_.blobs[io::Sha256Hex(content)] = content;
  }
  absl::StatusOr<std::string> Stage(const v1::Resume& resume, bool stop = false) {
    return StageCheckpoint(resume, "job-1", setup_, server_, [stop] { return stop; });
  }
  Lines Folders(const std::string& job = "job-1") {
    return io::ListDir(setup_.data_dir + "/checkpoints/" + job).value_or(Lines());
  }
  void Keep(const std::vector<int64_t>& steps, bool live, bool shared = false,
            LiveJob attempts = {{}, std::numeric_limits<int64_t>::max()}, bool ended = false) {
    v1::CheckpointSet set;
    v1::CheckpointSet::OfJob& job = *set.add_jobs();
    job.set_job_id("job-1");
    job.set_shared(shared);
    job.set_ended(ended);
    for (const int64_t step : steps) job.add_steps(step);
    const LiveJobs jobs = live ? LiveJobs{{"job-1", attempts}} : LiveJobs();
    ASSERT_TRUE(CleanCheckpoints(set, jobs, setup_).ok());
  }

  FakeServer server_;
  FakeClock clock_;
  bool away_ = false;
  std::vector<int64_t> registered_;
};

TEST_F(CheckpointTest, AFolderThatTheJobsRanksWereNotGivenIsNotRegistered) {
  channel::CheckpointEvent event = Save(10);
  Write(dir_ + "/secret/token", "t");
  event.path = dir_ + "/secret";
  CheckpointShipper shipper = Shipper();
  shipper.Add(event);
  shipper.Work();
  EXPECT_TRUE(server_.uploaded.empty());
  EXPECT_TRUE(shipper.Idle()) << "it is not tried again";
}

TEST_F(CheckpointTest, ALinkInACheckpointIsNotUploaded) {
  const channel::CheckpointEvent event = Save(10);
  Write(dir_ + "/token", "t");
  ASSERT_EQ(symlink((dir_ + "/token").c_str(), (event.path + "/a-link").c_str()), 0);
  CheckpointShipper shipper = Shipper();
  shipper.Add(event);
  shipper.Work();
  EXPECT_TRUE(server_.uploaded.empty());
  EXPECT_TRUE(shipper.Idle()) << "it is not tried again";
}

TEST_F(CheckpointTest, LinksThatRanksPutInADownloadFolderAreNotFollowed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can take the rights of ranks";
  const RankUser ranks = RankUserOf(65534, 65534);
  setup_.rank_user = ranks;
  ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);
  ASSERT_TRUE(io::MakeDirs(setup_.data_dir).ok());
  ASSERT_TRUE(PrepareDataDir(setup_).ok());
  ASSERT_TRUE(OpenCheckpointFolder("job-1", setup_).ok());
  const std::string job = setup_.data_dir + "/checkpoints/job-1";
  ASSERT_TRUE(io::MakeDirs(dir_ + "/outside").ok());
  {
    const RankRights rights(ranks);
    ASSERT_EQ(symlink((dir_ + "/outside").c_str(), (job + "/step-10.fetch").c_str()), 0);
    ASSERT_EQ(symlink((dir_ + "/outside").c_str(), (job + "/step-10.old").c_str()), 0);
  }
  v1::Resume resume;
  resume.set_step(10);
  AddFile(resume, "manifest.json", "{}");
  const auto staged = Stage(resume);
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_TRUE(io::ListDir(dir_ + "/outside")->empty());
  const RankRights rights(ranks);
  EXPECT_EQ(*io::ReadFile(*staged + "/manifest.json"), "{}");
  EXPECT_TRUE(io::RemoveAll(*staged).ok()) << "it is theirs";
}

TEST_F(CheckpointTest, SmallOnesAreUploaded) {
  CheckpointShipper shipper = Shipper();
  shipper.Add(Save(10));
  EXPECT_FALSE(shipper.Idle());
  shipper.Work();
  EXPECT_TRUE(shipper.Idle());
  ASSERT_EQ(server_.checkpoints.size(), 1u);
  const v1::CommitCheckpointRequest& request = server_.checkpoints[0];
  EXPECT_EQ(request.step(), 10);
  EXPECT_EQ(request.epoch(), 2);
  EXPECT_EQ(request.node(), "node-a");
  EXPECT_EQ(request.files_size(), 2);
  EXPECT_EQ(request.node_path(), "");
  EXPECT_EQ(server_.uploaded.size(), 2u);
  EXPECT_TRUE(server_.uploaded[0].is_checkpoint);
  EXPECT_EQ(registered_, std::vector<int64_t>{10});
}

TEST_F(CheckpointTest, LargeOnesStayAndAreRegisteredByPath) {
  setup_.checkpoint_upload_limit = 3;
  CheckpointShipper shipper = Shipper();
  const channel::CheckpointEvent event = Save(10);
  shipper.Add(event);
  shipper.Work();
  ASSERT_EQ(server_.checkpoints.size(), 1u);
  EXPECT_EQ(server_.checkpoints[0].node_path(), event.path);
  EXPECT_TRUE(server_.uploaded.empty());
}

TEST_F(CheckpointTest, PartsOfACheckpointOfSeveralNodesAreUploadedHoweverLarge) {
  setup_.checkpoint_upload_limit = 3;
  CheckpointShipper shipper = ShipperOfPart();
  shipper.Add(Save(10));
  shipper.Collect(10);
  server_.failure = ResourceExhausted("no room");
  shipper.Work();
  EXPECT_TRUE(server_.checkpoints.empty()) << "the other node could not read what stays here";
  server_.failure = absl::OkStatus();
  clock_.Advance(std::chrono::seconds(10));
  shipper.Work();
  ASSERT_EQ(server_.checkpoints.size(), 1u);
  EXPECT_EQ(server_.checkpoints[0].files_size(), 2);
}

TEST_F(CheckpointTest, WithASharedFolderNothingIsUploaded) {
  setup_.has_shared = true;
  CheckpointShipper shipper = Shipper();
  const channel::CheckpointEvent event = Save(10);
  EXPECT_EQ(event.path, setup_.shared_dir + "/job-1/checkpoints/step-10");
  shipper.Add(event);
  shipper.Work();
  ASSERT_EQ(server_.checkpoints.size(), 1u);
  EXPECT_EQ(server_.checkpoints[0].shared_path(), "job-1/checkpoints/step-10");
}

TEST_F(CheckpointTest, AnUnreachableServerIsRetriedButARefusalIsNot) {
  CheckpointShipper shipper = Shipper();
  shipper.Add(Save(10));
  server_.failure = Unavailable("no server");
  EXPECT_GT(shipper.Work(), Nanos(0));
  EXPECT_FALSE(shipper.Idle());
  EXPECT_NE(shipper.retrying().find("registering the checkpoint of step 10 failed once: no server"),
            std::string::npos)
      << shipper.retrying();
  server_.failure = FailedPrecondition("old epoch");
  clock_.Advance(std::chrono::seconds(10));
  shipper.Work();
  EXPECT_EQ(shipper.retrying(), "");
  EXPECT_TRUE(shipper.Idle());
  EXPECT_TRUE(server_.checkpoints.empty());
}

TEST_F(CheckpointTest, ACheckpointTheServerNeverAcceptsIsGivenUpButNotWhileItIsAway) {
  CheckpointShipper shipper = Shipper();
  shipper.Add(Save(10));
  server_.failure = Unavailable("no room for it");
  away_ = true;
  for (int turn = 0; turn < 1000; ++turn) {
    clock_.Advance(std::chrono::minutes(1));
    shipper.Work();
  }
  EXPECT_FALSE(shipper.Idle()) << "nothing is lost by waiting";
  away_ = false;
  for (int turn = 0; turn < 40; ++turn) {
    clock_.Advance(std::chrono::minutes(1));
    shipper.Work();
  }
  EXPECT_TRUE(shipper.Idle());
  EXPECT_EQ(shipper.retrying(), "");
  EXPECT_EQ(registered_, std::vector<int64_t>{10}) << "settled: a gang waits for no part of it";
  shipper.Add(Save(20));
  server_.failure = absl::OkStatus();
  shipper.Work();
  ASSERT_EQ(server_.checkpoints.size(), 1u);
  EXPECT_EQ(server_.checkpoints[0].step(), 20);
}

TEST_F(CheckpointTest, ANewerOneHasItsOwnRetries) {
  CheckpointShipper shipper = Shipper();
  shipper.Add(Save(10));
  server_.failure = Unavailable("no room for it");
  for (int turn = 0; turn < 29; ++turn) {
    shipper.Work();
    clock_.Advance(std::chrono::minutes(1));
  }
  EXPECT_TRUE(registered_.empty());
  shipper.Add(Save(20));
  for (int turn = 0; turn < 5; ++turn) {
    shipper.Work();
    clock_.Advance(std::chrono::minutes(1));
  }
  EXPECT_TRUE(registered_.empty()) << "not left out for what the older one had used up";
  server_.failure = absl::OkStatus();
  shipper.Work();
  ASSERT_EQ(server_.checkpoints.size(), 1u);
  EXPECT_EQ(server_.checkpoints[0].step(), 20);
}

TEST_F(CheckpointTest, AnOvertakenOneIsNotUploaded) {
  CheckpointShipper shipper = Shipper();
  for (const int64_t step : {10, 20, 30}) shipper.Add(Save(step));
  channel::CheckpointEvent best = Save(40);
  best.best = true;
  shipper.Add(best);
  shipper.Add(Save(50));
  while (!shipper.Idle()) shipper.Work();
  EXPECT_EQ(registered_, (std::vector<int64_t>{40, 50})) << "a best one is";
}

TEST_F(CheckpointTest, OnSeveralNodesTheCollectedStepIsRegisteredAndNewerOnesWait) {
  CheckpointShipper shipper = ShipperOfPart();
  for (const int64_t step : {10, 20, 30, 40}) shipper.Add(Save(step));
  shipper.Work();
  EXPECT_EQ(registered_, std::vector<int64_t>()) << "another node may have another one next";
  shipper.Collect(20);
  shipper.Work();
  shipper.Work();
  EXPECT_EQ(registered_, std::vector<int64_t>{20});
  channel::CheckpointEvent best = Save(50);
  best.best = true;
  shipper.Add(best);
  shipper.Add(Save(60));
  shipper.Collect(60);
  shipper.Work();
  shipper.Work();
  EXPECT_EQ(registered_, (std::vector<int64_t>{20, 50, 60})) << "a best one is not overtaken";
  EXPECT_TRUE(shipper.Idle());
}

TEST_F(CheckpointTest, OnSeveralNodesTheNewestIsRegisteredAtTheEndToo) {
  CheckpointShipper shipper = ShipperOfPart();
  for (const int64_t step : {10, 20, 30}) shipper.Add(Save(step));
  shipper.Collect(20);
  EXPECT_TRUE(shipper.End());
  EXPECT_FALSE(shipper.End());
  while (!shipper.Idle()) shipper.Work();
  EXPECT_EQ(registered_, (std::vector<int64_t>{20, 30}));
}

TEST_F(CheckpointTest, RepeatedAndRegisteredStepsAreIgnored) {
  CheckpointShipper shipper = Shipper(/*registered=*/10);
  shipper.Add(Save(10));
  shipper.Add(Save(20));
  shipper.Add(Save(20));
  while (!shipper.Idle()) shipper.Work();
  EXPECT_EQ(registered_, std::vector<int64_t>{20});
}

TEST_F(CheckpointTest, AfterADropNothingIsRegistered) {
  CheckpointShipper shipper = Shipper();
  shipper.Add(Save(10));
  shipper.Drop();
  shipper.Add(Save(20));
  EXPECT_TRUE(shipper.Idle());
  shipper.Work();
  EXPECT_TRUE(server_.checkpoints.empty());
}

TEST_F(CheckpointTest, AResumeDownloadsOnlyMissingFiles) {
  Save(10, "own part");
  v1::Resume resume;
  resume.set_step(10);
  AddFile(resume, "rank-0-of-1.safetensors", "own part");
  AddFile(resume, "rank-1-of-2.safetensors", "the other's part");
  AddFile(resume, "manifest.json", "{}");
  const std::string dir = Stage(resume).value();
  EXPECT_EQ(dir, setup_.data_dir + "/checkpoints/job-1/step-10");
  EXPECT_EQ(io::ReadFile(dir + "/rank-1-of-2.safetensors").value(), "the other's part");
  EXPECT_EQ(io::ReadFile(dir + "/rank-0-of-1.safetensors").value(), "own part");
  EXPECT_EQ(server_.download_offsets.size(), 1u) << "one file was missing";
  EXPECT_EQ(Folders(), Lines{"step-10"});
  ASSERT_TRUE(Stage(resume).ok());
  EXPECT_EQ(server_.download_offsets.size(), 1u) << "now nothing is";
}

TEST_F(CheckpointTest, ABlobLostOrDamagedOnTheServerIsDataLossButALocalDiskErrorIsNot) {
  v1::Resume resume;
  resume.set_step(10);
  AddFile(resume, "part", "0123456789");
  server_.failure = DataLoss("blob is damaged on the server's disk");
  EXPECT_TRUE(absl::IsDataLoss(Stage(resume).status()));
  EXPECT_FALSE(io::Exists(setup_.data_dir + "/checkpoints/job-1/step-10.fetch/part"));
  server_.failure = PermissionDenied("this node has no part in it");
  EXPECT_TRUE(absl::IsInternal(Stage(resume).status())) << "never the owner's to correct";
  server_.failure = OutOfRange("offset 4 of 3 bytes");
  EXPECT_TRUE(absl::IsUnavailable(Stage(resume).status())) << "from the beginning, then";
  EXPECT_FALSE(io::Exists(setup_.data_dir + "/checkpoints/job-1/step-10.fetch/part"));
}

TEST_F(CheckpointTest, ABrokenDownloadResumesAndIsNeverSeenInPart) {
  v1::Resume resume;
  resume.set_step(10);
  AddFile(resume, "part", "0123456789");
  server_.break_download_after = 4;
  EXPECT_TRUE(absl::IsUnavailable(Stage(resume).status()));
  EXPECT_EQ(Folders(), Lines{"step-10.fetch"});
  ASSERT_TRUE(Stage(resume).ok());
  EXPECT_EQ(server_.download_offsets, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(Folders(), Lines{"step-10"});
}

TEST_F(CheckpointTest, ABrokenDownloadResumesWhereRanksAreAnotherUserToo) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can run ranks as another user";
  setup_.rank_user = RankUser{"nobody", 65534, 65534, {65534}, "/"};
  ASSERT_TRUE(io::MakeDirs(setup_.data_dir + "/checkpoints").ok());
  ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);
  v1::Resume resume;
  resume.set_step(10);
  AddFile(resume, "part", "0123456789");
  server_.break_download_after = 4;
  EXPECT_TRUE(absl::IsUnavailable(Stage(resume).status()));
  ASSERT_TRUE(OpenCheckpointFolder("job-1", setup_).ok()) << "another job goes on from this one's";
  const auto staged = Stage(resume);
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_EQ(server_.download_offsets, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(Folders(), Lines{"step-10"});
  struct stat info {};
  ASSERT_EQ(stat((*staged + "/part").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 65534u);
}

TEST_F(CheckpointTest, ADownloadOnlyWritesToAFolderOfTheWorkers) {
  v1::Resume resume;
  resume.set_step(10);
  AddFile(resume, "part", "0123456789");
  const std::string job = setup_.data_dir + "/checkpoints/job-1", fetch = job + "/step-10.fetch";
  Write(dir_ + "/elsewhere/file", "x");
  ASSERT_TRUE(io::MakeDirs(job).ok());
  ASSERT_EQ(symlink((dir_ + "/elsewhere").c_str(), fetch.c_str()), 0);
  ASSERT_TRUE(Stage(resume).ok());
  EXPECT_EQ(io::ListDir(dir_ + "/elsewhere").value(), Lines{"file"});
  ASSERT_TRUE(io::RemoveAll(job + "/step-10").ok());
  Write(fetch + "/of-somebody", "x");
  ASSERT_EQ(chmod(fetch.c_str(), 0777), 0);
  ASSERT_TRUE(Stage(resume).ok());
  EXPECT_EQ(io::ListDir(job + "/step-10").value(), Lines{"part"});
}

TEST_F(CheckpointTest, AnEditedLocalFileIsReplaced) {
  Save(10, "edited!!");
  v1::Resume resume;
  resume.set_step(10);
  AddFile(resume, "rank-0-of-1.safetensors", "own part");
  const std::string dir = Stage(resume).value();
  EXPECT_EQ(io::ReadFile(dir + "/rank-0-of-1.safetensors").value(), "own part");
}

TEST_F(CheckpointTest, AStopEndsTheFetch) {
  v1::Resume resume;
  resume.set_step(10);
  AddFile(resume, "part", "0123456789");
  EXPECT_TRUE(absl::IsAborted(Stage(resume, /*stop=*/true).status()));
}

TEST_F(CheckpointTest, AMissingFolderIsDataLoss) {
  v1::Resume resume;
  resume.set_step(10);
  EXPECT_TRUE(absl::IsDataLoss(Stage(resume).status())) << "no files";
  AddFile(resume, "part", "x");
  server_.blobs.clear();
  EXPECT_TRUE(absl::IsDataLoss(Stage(resume).status()));
  resume.clear_files();
  resume.set_node_path(dir_ + "/nowhere");
  EXPECT_TRUE(absl::IsDataLoss(Stage(resume).status()));
  resume.clear_node_path();
  resume.set_shared_path("job-1/checkpoints/step-10");
  EXPECT_TRUE(absl::IsDataLoss(Stage(resume).status()));
  resume.set_shared_path("../evil");
  EXPECT_FALSE(Stage(resume).ok());
}

// Only this node has registered its part of a newer one: the job continues from the one before.
TEST_F(CheckpointTest, CheckpointsInUseByALiveAttemptAreNotDeleted) {
  for (const int64_t step : {10, 40}) Save(step);
  Write(setup_.data_dir + "/checkpoints/job-1/step-20/x", "x");
  Write(setup_.data_dir + "/checkpoints/job-1/step-25.fetch/x", "x");
  Write(setup_.data_dir + "/checkpoints/job-1/step-30.partial/x", "x");
  Keep({40}, /*live=*/true, /*shared=*/false, {.in_use = {25}, .settled = 25});
  EXPECT_EQ(Folders(), (Lines{"step-25.fetch", "step-30.partial", "step-40"}));
  Keep({40}, /*live=*/true, /*shared=*/false, {.in_use = {25}, .settled = 40});
  EXPECT_EQ(Folders(), (Lines{"step-25.fetch", "step-40"}));
}

TEST_F(CheckpointTest, AllUnkeptCheckpointsOfAnAbsentJobAreDeleted) {
  for (const int64_t step : {10, 20, 30}) Save(step);
  Write(setup_.data_dir + "/checkpoints/job-1/step-40.partial/x", "x");
  Write(setup_.data_dir + "/checkpoints/job-2/step-5/x", "x");
  Keep({20}, /*live=*/false);
  EXPECT_EQ(Folders(), Lines{"step-20"});
  EXPECT_FALSE(io::Exists(setup_.data_dir + "/checkpoints/job-2")) << "the server knows none of it";
}

TEST_F(CheckpointTest, OnlyOlderCheckpointsOfALiveJobAreDeleted) {
  for (const int64_t step : {10, 20, 30, 40}) Save(step);
  Write(setup_.data_dir + "/checkpoints/job-1/step-50.partial/x", "x");
  Write(setup_.data_dir + "/checkpoints/job-1/step-15.partial/x", "x");
  Keep({20, 30}, /*live=*/true);
  EXPECT_EQ(Folders(), (Lines{"step-20", "step-30", "step-40", "step-50.partial"}));
}

TEST_F(CheckpointTest, InTheSharedFolderOnlyNamedJobsAreCleaned) {
  setup_.has_shared = true;
  for (const int64_t step : {10, 20, 30}) Save(step);
  Write(setup_.shared_dir + "/job-of-another-server/checkpoints/step-1/x", "x");
  Write(setup_.shared_dir + "/job-1/model/weights", "x");
  const auto folders = [&] {
    return io::ListDir(setup_.shared_dir + "/job-1/checkpoints").value_or(Lines());
  };
  Keep({20}, /*live=*/true, /*shared=*/true);
  EXPECT_EQ(folders(), (Lines{"step-20", "step-30"}))
      << "another node may have written step 30 a moment ago";
  EXPECT_TRUE(io::Exists(setup_.shared_dir + "/job-of-another-server/checkpoints/step-1/x"));
  Keep({20}, /*live=*/false, /*shared=*/true, {}, /*ended=*/true);
  EXPECT_EQ(folders(), Lines{"step-20"});
  Keep({}, /*live=*/false, /*shared=*/true, {}, /*ended=*/true);
  EXPECT_FALSE(io::Exists(setup_.shared_dir + "/job-1/checkpoints"));
  EXPECT_TRUE(io::Exists(setup_.shared_dir + "/job-1/model/weights"));
}

// Its attempt is on other nodes, and the server does not know what they are writing.
TEST_F(CheckpointTest, InTheSharedFolderALiveJobOfOtherNodesIsLeftAlone) {
  setup_.has_shared = true;
  Save(3);
  for (const std::vector<int64_t>& kept : {std::vector<int64_t>{}, {5}}) {
    Keep(kept, /*live=*/false, /*shared=*/true);
    EXPECT_TRUE(io::Exists(setup_.shared_dir + "/job-1/checkpoints/step-3/manifest.json"));
  }
}

TEST(SettledTest, OnlyTheSameJobsCanHaveSettledMore) {
  const LiveJobs before = {{"a", {{5}, 10}}, {"b", {{}, 3}}};
  EXPECT_FALSE(HaveSettled(before, before));
  EXPECT_TRUE(HaveSettled(before, {{"a", {{5}, 15}}, {"b", {{}, 3}}}));
  EXPECT_FALSE(HaveSettled(before, {{"a", {{5}, 15}}})) << "one is gone";
  EXPECT_FALSE(HaveSettled(before, {{"a", {{5}, 15}}, {"c", {{}, 3}}})) << "another one came";
  EXPECT_FALSE(HaveSettled(before, {{"a", {{6}, 15}}, {"b", {{}, 3}}})) << "another attempt";
  EXPECT_FALSE(HaveSettled({}, {}));
}

TEST_F(CheckpointTest, AFolderNameIsAStepOrNothing) {
  EXPECT_EQ(StepOfFolder("step-40"), 40);
  EXPECT_EQ(StepOfFolder("step-40.partial"), 40);
  for (const char* name : {"step-", "step-x", "step-4x", "step--4", "40", "step-0", ""}) {
    EXPECT_EQ(StepOfFolder(name), 0) << name;
  }
}

}  // namespace
}  // namespace sft::worker
