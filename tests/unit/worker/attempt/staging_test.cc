#include "worker/attempt/staging.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "common/io/file_stamp.h"
#include "common/io/sha256.h"
#include "tests/unit/worker/base/test_node.h"
#include "tests/unit/worker/hub/fake_hub.h"
#include "tests/unit/worker/transfer/fake_server.h"
#include "worker/transfer/blob_file.h"

namespace sft::worker {
namespace {

class StagingTest : public TestNode {
 protected:
  void SetUp() override {
    TestNode::SetUp();
    data_ = "{\"text\":\"hello\"}\n";
    hash_ = io::Sha256Hex(data_);
    server_.blobs[hash_] = data_;
    v1::JobFileRef& file = *dispatch_.add_files();
    file.set_key("job.data");
    file.set_sha256(hash_);
    file.set_size(static_cast<int64_t>(data_.size()));
  }
  absl::StatusOr<StagedJob> Stage() {
    return stager_.Stage(dispatch_, model_, [this] { return stop_; });
  }

  FakeServer server_;
  Stager stager_{setup_, server_};
  v1::Dispatch dispatch_;
  std::string model_ = "tiny";
  std::string data_, hash_;
  bool stop_ = false;
};

TEST_F(StagingTest, TheModelIsFoundAndTheDataFetchedOnce) {
  const auto staged = Stage();
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_EQ(staged->model_dir, dir_ + "/models/tiny");
  EXPECT_EQ(staged->train_file, setup_.BlobPath(hash_));
  EXPECT_EQ(*io::ReadFile(staged->train_file), data_);
  ASSERT_TRUE(Stage().ok());
  EXPECT_EQ(server_.download_offsets.size(), 1u) << "it is kept";
}

TEST_F(StagingTest, ABrokenDownloadGoesOnWhereItWas) {
  server_.break_download_after = 5;
  const absl::Status broken = Stage().status();
  EXPECT_TRUE(absl::IsUnavailable(broken));
  EXPECT_TRUE(HasProgressed(broken));
  EXPECT_FALSE(io::Exists(setup_.BlobPath(hash_)));
  ASSERT_TRUE(Stage().ok());
  EXPECT_EQ(server_.download_offsets, (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(*io::ReadFile(setup_.BlobPath(hash_)), data_);
}

TEST_F(StagingTest, BytesThatDoNotMatchTheHashAreThrownAwayAndFetchedAgain) {
  server_.blobs[hash_][0] = 'X';
  EXPECT_TRUE(absl::IsUnavailable(Stage().status()));
  EXPECT_FALSE(io::Exists(setup_.BlobPath(hash_)));
  EXPECT_FALSE(io::Exists(setup_.BlobPath(hash_) + ".part"));
  server_.blobs[hash_] = data_;
  EXPECT_TRUE(Stage().ok());
}

TEST_F(StagingTest, BytesThatNeverMatchTheHashAreNotFetchedForEver) {
  server_.blobs[hash_][0] = 'X';
  EXPECT_TRUE(IsPassing(Stage().status()));
  EXPECT_TRUE(IsPassing(Stage().status()));
  const absl::Status last = Stage().status();
  EXPECT_TRUE(absl::IsInternal(last)) << "another node may get them whole: " << last;
  EXPECT_NE(Message(last).find("3 times in a row"), std::string::npos) << last;
  EXPECT_EQ(server_.download_offsets.size(), 3u);
}

TEST_F(StagingTest, ADataSetThatTheServerHasLostIsNotTheOwnersFault) {
  server_.blobs.erase(hash_);
  const absl::Status lost = Stage().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(lost)) << lost;
  server_.blobs[hash_] = data_;
  server_.failure = DataLoss("blob is damaged on the server's disk");
  EXPECT_TRUE(absl::IsFailedPrecondition(Stage().status()));
}

TEST_F(StagingTest, ACopyThatWasDamagedOnThisNodeIsFetchedAgain) {
  ASSERT_TRUE(Stage().ok());
  Write(setup_.BlobPath(hash_), "{\"text\":\"hellO\"}\n");
  ASSERT_TRUE(Stage().ok());
  EXPECT_EQ(*io::ReadFile(setup_.BlobPath(hash_)), data_);
}

// Passes requests on to a hub that the test keeps.
class WayToHub : public hub::HttpClient {
 public:
  explicit WayToHub(hub::HttpClient& to) : to_(to) {}
  absl::StatusOr<hub::HttpResponse> Send(const hub::HttpRequest& request) override {
    return to_.Send(request);
  }

 private:
  hub::HttpClient& to_;
};

TEST_F(StagingTest, ABrokenCopyOfAModelIsDownloadedAgain) {
  FakeHub hub;
  hub.files = {{"config.json", R"({"model_type":"llama"})"},
               {"tokenizer.json", "{}"},
               {"model.safetensors", Safetensors(64)}};
  HubSetup hub_setup;
  hub_setup.cache_dir = dir_ + "/hub";
  setup_.hub_dirs = {hub_setup.cache_dir};
  PatientClock clock;
  const auto models = *ModelStore::Open(hub_setup, {}, std::make_unique<WayToHub>(hub.http), clock);
  Stager stager(setup_, server_, models.get());
  const auto stage = [&] { return stager.Stage(dispatch_, "org/name", [] { return false; }); };
  const auto first = stage();
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string blob = hub_setup.cache_dir + "/models--org--name/blobs/" +
                           FakeHub::EtagOf("model.safetensors", hub.files["model.safetensors"]);
  Write(blob, "cut");
  const auto again = stage();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*io::ReadFile(again->model_dir + "/model.safetensors"), Safetensors(64));
  EXPECT_EQ(hub.Ranges("model.safetensors").size(), 2u);
  // Also where the size is right.
  Write(blob, std::string(Safetensors(64).size(), '\0'));
  const auto damaged = stage();
  ASSERT_TRUE(damaged.ok()) << damaged.status();
  EXPECT_EQ(*io::ReadFile(damaged->model_dir + "/model.safetensors"), Safetensors(64));
  EXPECT_EQ(hub.Ranges("model.safetensors").size(), 3u);
  // A folder that is no download stays as it is, and jobs get the copy.
  ASSERT_TRUE(io::RemoveAll(hub_setup.cache_dir + "/models--org--name").ok());
  MakeModel(dir_ + "/models/org/name");
  Write(dir_ + "/models/org/name/model.safetensors", "cut");
  const auto beside = stage();
  ASSERT_TRUE(beside.ok()) << beside.status();
  EXPECT_EQ(beside->model_dir, again->model_dir);
  // Where it does not come either, both reasons are told.
  ASSERT_TRUE(io::RemoveAll(hub_setup.cache_dir + "/models--org--name").ok());
  hub.http.answer = [](const hub::HttpRequest&) { return hub::FakeHttp::Make(400); };
  const absl::Status status = stage().status();
  EXPECT_NE(Message(status).find("cannot be used"), std::string::npos) << status;
  EXPECT_NE(Message(status).find("400"), std::string::npos) << status;
}

TEST_F(StagingTest, ADiskOrAModelOfTheNodeIsNotTheOwnersFault) {
  Write(setup_.data_dir + "/datasets", "in the way");
  const absl::Status disk = Stage().status();
  EXPECT_TRUE(absl::IsInternal(disk)) << disk;
  ASSERT_TRUE(io::RemoveAll(setup_.data_dir + "/datasets").ok());
  ASSERT_TRUE(io::RemoveAll(dir_ + "/models/tiny").ok());
  const absl::Status model = Stage().status();
  EXPECT_TRUE(absl::IsInternal(model)) << "the server placed it where it was listed: " << model;
  model_ = dir_ + "/models/tiny";
  EXPECT_TRUE(absl::IsNotFound(Stage().status())) << "a path is the job's own";
}

TEST_F(StagingTest, AServerWithTooMuchToDoIsAskedAgainAndWhatArrivedIsKept) {
  server_.break_download_after = 5;
  EXPECT_TRUE(absl::IsUnavailable(Stage().status()));
  server_.failure = ResourceExhausted("too many requests");
  const absl::Status busy = Stage().status();
  EXPECT_TRUE(absl::IsUnavailable(busy)) << "no disk is full here: " << busy;
  EXPECT_NE(Message(busy).find("too many requests"), std::string::npos) << busy;
  server_.failure = absl::OkStatus();
  ASSERT_TRUE(Stage().ok());
  EXPECT_EQ(server_.download_offsets, (std::vector<int64_t>{0, 5}));
}

TEST_F(StagingTest, WhileOneBlobIsFetchedAnotherIsStagedAndAWaitForTheSameCanBeStopped) {
  const std::string other = "{\"text\":\"other\"}\n";
  server_.blobs[io::Sha256Hex(other)] = other;
  absl::Status same, another;
  server_.before = [&](int call) {
    if (call != 1) return;
    // The first download has begun.
    same = stager_.Stage(dispatch_, model_, [] { return true; }).status();
    v1::Dispatch dispatch = dispatch_;
    dispatch.mutable_files(0)->set_sha256(io::Sha256Hex(other));
    dispatch.mutable_files(0)->set_size(static_cast<int64_t>(other.size()));
    another = stager_.Stage(dispatch, model_, [] { return false; }).status();
  };
  EXPECT_TRUE(Stage().ok());
  EXPECT_TRUE(absl::IsAborted(same)) << same;
  EXPECT_TRUE(another.ok()) << another;
}

TEST_F(StagingTest, ADataSetThatIsStagedIsNotRemovedBeforeItsAttemptIsKnown) {
  setup_.disk_marks = *io::ParseDiskMarks("99%", "off");  // always below it
  ASSERT_TRUE(Stage().ok());
  const timespec old[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, setup_.BlobPath(hash_).c_str(), old, 0), 0);
  ASSERT_TRUE(Stage().ok()) << "another attempt's";
  ASSERT_TRUE(stager_.Clean([] { return DataInUse{}; }, Clock::Real().Wall()).ok());
  EXPECT_TRUE(io::Exists(setup_.BlobPath(hash_)));
  const WallTime later = Clock::Real().Wall() + std::chrono::hours(1);
  ASSERT_TRUE(stager_.Clean([this] { return DataInUse{{hash_}, {}}; }, later).ok());
  EXPECT_TRUE(io::Exists(setup_.BlobPath(hash_))) << "an attempt uses it";
  ASSERT_TRUE(stager_.Clean([] { return DataInUse{}; }, later).ok());
  EXPECT_FALSE(io::Exists(setup_.BlobPath(hash_)));
}

// What this process has read so far.
int64_t BytesRead() {
  const std::string io = *io::ReadFile("/proc/self/io");
  return std::stoll(io.substr(io.find("rchar: ") + 7));
}

TEST_F(StagingTest, WhatWasCheckedIsReadAgainOnlyWhenItHasChanged) {
  data_ = std::string(20'000'000, 'x');
  hash_ = io::Sha256Hex(data_);
  server_.blobs[hash_] = data_;
  dispatch_.mutable_files(0)->set_sha256(hash_);
  dispatch_.mutable_files(0)->set_size(static_cast<int64_t>(data_.size()));
  ASSERT_TRUE(Stage().ok());
  const std::string path = setup_.BlobPath(hash_);
  int64_t before = BytesRead();
  ASSERT_TRUE(Stage().ok());
  EXPECT_LT(BytesRead() - before, 1'000'000);
  // Nor after the data were marked as used, or by the worker's next life.
  ASSERT_TRUE(stager_.Clean([&] { return DataInUse{{hash_}, {}}; }, Clock::Real().Wall()).ok());
  Stager next(setup_, server_);
  before = BytesRead();
  ASSERT_TRUE(next.Stage(dispatch_, model_, [] { return false; }).ok());
  EXPECT_LT(BytesRead() - before, 1'000'000);
  // A change that keeps the size, and pretends to be old.
  const auto time = std::filesystem::last_write_time(path);
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(pwrite(fd, "y", 1, 5), 1);
  close(fd);
  std::filesystem::last_write_time(path, time);
  ASSERT_TRUE(Stage().ok());
  EXPECT_EQ(*io::ReadFile(path), data_);
  EXPECT_EQ(server_.download_offsets.size(), 2u);
}

TEST_F(StagingTest, WhatRanksOfAnotherUserMayReadIsNotReadAgainForThat) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can run ranks as another user";
  data_ = std::string(20'000'000, 'x');
  hash_ = io::Sha256Hex(data_);
  server_.blobs[hash_] = data_;
  dispatch_.mutable_files(0)->set_sha256(hash_);
  dispatch_.mutable_files(0)->set_size(static_cast<int64_t>(data_.size()));
  setup_.rank_user = RankUser{"nobody", 65534, 65534, {65534}, "/"};
  ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);
  const auto staged = Stage();
  ASSERT_TRUE(staged.ok()) << staged.status();
  struct stat info {};
  ASSERT_EQ(stat(staged->train_file.c_str(), &info), 0);
  EXPECT_EQ(info.st_gid, 65534u);
  EXPECT_EQ(info.st_mode & 07777, 0640u);
  const int64_t before = BytesRead();
  ASSERT_TRUE(Stage().ok());
  EXPECT_LT(BytesRead() - before, 1'000'000);
}

TEST_F(StagingTest, AStopEndsTheCheckOfWhatIsHere) {
  Write(setup_.BlobPath(hash_), data_);
  stop_ = true;
  EXPECT_TRUE(absl::IsAborted(Stage().status()));
  EXPECT_TRUE(io::Exists(setup_.BlobPath(hash_)));
  Write(setup_.BlobPath(hash_) + ".part", data_);
  ASSERT_TRUE(io::RemoveAll(setup_.BlobPath(hash_)).ok());
  EXPECT_TRUE(absl::IsAborted(Stage().status())) << "it has arrived, and is to be checked";
  stop_ = false;
  EXPECT_TRUE(Stage().ok());
  EXPECT_TRUE(server_.download_offsets.empty());
}

TEST_F(StagingTest, AStopEndsADownload) {
  stop_ = true;
  EXPECT_TRUE(absl::IsAborted(Stage().status()));
}

TEST_F(StagingTest, ANodePathMustLieBelowTheRoots) {
  Write(dir_ + "/files/rows.jsonl", data_);
  Write(dir_ + "/private/rows.jsonl", data_);
  v1::JobFileRef& file = *dispatch_.mutable_files(0);
  file.clear_sha256();
  file.set_node_path(dir_ + "/files/rows.jsonl");
  EXPECT_EQ(Stage()->train_file, dir_ + "/files/rows.jsonl");
  EXPECT_EQ(Stage()->train_stamp, io::ContentStampOf(dir_ + "/files/rows.jsonl"));
  file.set_node_path(dir_ + "/files/../private/rows.jsonl");
  const absl::Status status = Stage().status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_NE(Message(status).find("job.data"), std::string::npos) << status;
  file.set_node_path(dir_ + "/files/none.jsonl");
  EXPECT_TRUE(absl::IsNotFound(Stage().status()));
  file.set_node_path(dir_ + "/files/rows.jsonl/rows.jsonl");
  EXPECT_TRUE(absl::IsNotFound(Stage().status())) << "a file is no folder";
  ASSERT_EQ(symlink("loop.jsonl", (dir_ + "/files/loop.jsonl").c_str()), 0);
  file.set_node_path(dir_ + "/files/loop.jsonl");
  EXPECT_TRUE(absl::IsPermissionDenied(Stage().status())) << Stage().status();
  file.set_node_path(dir_ + "/files/" + std::string(300, 'a'));
  EXPECT_TRUE(absl::IsInvalidArgument(Stage().status())) << Stage().status();
  file.set_node_path(dir_ + "/files");
  EXPECT_TRUE(absl::IsInvalidArgument(Stage().status()));
  ASSERT_EQ(mkfifo((dir_ + "/files/pipe").c_str(), 0600), 0);
  file.set_node_path(dir_ + "/files/pipe");
  EXPECT_TRUE(absl::IsInvalidArgument(Stage().status())) << "opening it would wait for ever";
}

TEST_F(StagingTest, HowAFileOfTheNodeLookedIsPassedOnToItsReaders) {
  Write(dir_ + "/files/rows.jsonl", data_);
  EXPECT_EQ(Stage()->train_stamp, "") << "what was fetched is written by nobody else";
  dispatch_.mutable_files(0)->clear_sha256();
  dispatch_.mutable_files(0)->set_node_path(dir_ + "/files/rows.jsonl");
  const std::string before = Stage()->train_stamp;
  EXPECT_NE(before, "");
  EXPECT_EQ(Stage()->train_stamp, before);
  Write(dir_ + "/files/rows.jsonl", data_ + data_);
  EXPECT_NE(Stage()->train_stamp, before);
}

TEST_F(StagingTest, AnotherJobsFolderIsNotThereUnlessTheServerNamesTheJob) {
  const std::string other = dir_ + "/files/job-abcdefgh23";
  Write(other + "/model/rows.jsonl", data_);
  std::filesystem::create_symlink(other, dir_ + "/files/harmless");
  v1::JobFileRef& file = *dispatch_.mutable_files(0);
  file.clear_sha256();
  file.set_node_path(dir_ + "/files/none.jsonl");
  dispatch_.mutable_folders();
  const std::string missing(Message(Stage().status()));
  for (const char* path :
       {"/files/job-abcdefgh23/model/rows.jsonl", "/files/harmless/model/rows.jsonl",
        "/files//harmless/../job-abcdefgh23/model/rows.jsonl"}) {
    file.set_node_path(dir_ + path);
    const absl::Status status = Stage().status();
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    std::string as_missing = missing;
    as_missing.replace(as_missing.find("/files/none.jsonl"), 17, path);
    EXPECT_EQ(Message(status), as_missing) << "as what is nowhere";
  }
  dispatch_.mutable_folders()->add_jobs("job-abcdefgh23");
  EXPECT_TRUE(Stage().ok()) << Stage().status();
  dispatch_.clear_folders();
  EXPECT_TRUE(Stage().ok()) << "of a server of the version before";
}

TEST_F(StagingTest, WhatTheWorkerKeepsForAllJobsIsNotThere) {
  setup_.roots.push_back("/");
  Write(setup_.data_dir + "/datasets/somebodys", data_);
  v1::JobFileRef& file = *dispatch_.mutable_files(0);
  file.clear_sha256();
  file.set_node_path(setup_.data_dir + "/datasets/somebodys");
  dispatch_.mutable_folders();
  EXPECT_TRUE(absl::IsNotFound(Stage().status())) << Stage().status();
}

TEST_F(StagingTest, ValidationRowsAreStagedToo) {
  v1::JobFileRef& file = *dispatch_.add_files();
  file.set_key("data.val");
  file.set_sha256(hash_);
  file.set_size(static_cast<int64_t>(data_.size()));
  EXPECT_EQ(Stage()->val_file, setup_.BlobPath(hash_));
}

TEST_F(StagingTest, FurtherFilesWithRowsAreStagedInTheirOrder) {
  for (const char* key : {"data.mixture[2]", "data.mixture[1]"}) {
    v1::JobFileRef& file = *dispatch_.add_files();
    file.set_key(key);
    file.set_name(key);
    file.set_sha256(hash_);
    file.set_size(static_cast<int64_t>(data_.size()));
  }
  const auto staged = Stage();
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_EQ(staged->train_file, setup_.BlobPath(hash_));
  ASSERT_EQ(staged->more_train_files.size(), 2u);
  EXPECT_EQ(staged->more_train_files[0].name, "data.mixture[1]");
  EXPECT_EQ(staged->more_train_files[1].path, setup_.BlobPath(hash_));
  dispatch_.mutable_files(1)->set_key("data.mixture[999999999999]");
  EXPECT_TRUE(absl::IsInternal(Stage().status()));
}

TEST_F(StagingTest, TheSubmittersNamesOfTheFilesAreKept) {
  dispatch_.mutable_files(0)->set_name("mine/rows.jsonl");
  const auto staged = Stage();
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_EQ(staged->train_name, "mine/rows.jsonl");
  EXPECT_EQ(staged->val_name, "");
}

TEST_F(StagingTest, AHashThatIsNoneNeverBecomesAPath) {
  dispatch_.mutable_files(0)->set_sha256("../../etc/passwd");
  EXPECT_TRUE(absl::IsInternal(Stage().status()));
}

TEST_F(StagingTest, AnEmptyDataSetIsAFileToo) {
  dispatch_.mutable_files(0)->set_sha256(io::Sha256Hex(""));
  dispatch_.mutable_files(0)->set_size(0);
  EXPECT_EQ(*io::ReadFile(Stage()->train_file), "");
}

TEST_F(StagingTest, TheFilesOfAnAdapterAreFetchedUnderTheirNames) {
  for (const auto& [name, bytes] : {std::pair("adapter_config.json", "{}"),
                                    std::pair("deep/adapter_model.safetensors", "weights")}) {
    v1::JobFileRef& file = *dispatch_.add_files();
    file.set_key(std::string("job.adapter/") + name);
    file.set_sha256(io::Sha256Hex(bytes));
    file.set_size(static_cast<int64_t>(std::string(bytes).size()));
    server_.blobs[file.sha256()] = bytes;
  }
  const auto staged = Stage();
  ASSERT_TRUE(staged.ok()) << staged.status();
  ASSERT_EQ(staged->adapter_files.size(), 2u);
  EXPECT_EQ(*io::ReadFile(staged->adapter_files.at("deep/adapter_model.safetensors")), "weights");
  dispatch_.mutable_files(1)->set_key("job.adapter/../../escape");
  EXPECT_TRUE(absl::IsInternal(Stage().status()));
}

TEST_F(StagingTest, AnAdapterOnTheNodeMustBeOne) {
  v1::JobFileRef& file = *dispatch_.add_files();
  file.set_key("job.adapter");
  file.set_node_path(dir_ + "/models/tiny");
  const absl::Status none = Stage().status();
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  EXPECT_NE(Message(none).find("holds no adapter_config.json"), std::string::npos) << none;
  ASSERT_TRUE(io::WriteFileAtomic(dir_ + "/models/tiny/adapter_config.json", "{}").ok());
  const auto staged = Stage();
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_EQ(staged->adapter_dir, dir_ + "/models/tiny");
}

TEST_F(StagingTest, AnAdapterOnTheNodeHasNoFileThatTheJobMayNotRead) {
  const std::string folder = dir_ + "/files/adapter";
  Write(folder + "/adapter_config.json", "{}");
  v1::JobFileRef& file = *dispatch_.add_files();
  file.set_key("job.adapter");
  file.set_node_path(folder);
  dispatch_.mutable_folders();
  ASSERT_TRUE(Stage().ok()) << Stage().status();
  Write(dir_ + "/files/job-abcdefgh23/merges.txt", "another job's");
  Write(dir_ + "/files/shared/merges.txt", "anybody's");
  Write(dir_ + "/private/merges.txt", "nobody's");
  for (const char* name : {"merges.txt", "adapter_config.json", "adapter_model.safetensors"}) {
    const std::string link = folder + "/" + name;
    for (const char* target : {"/private/merges.txt", "/private/none"}) {
      std::filesystem::remove(link);
      std::filesystem::create_symlink(dir_ + target, link);
      const absl::Status outside = Stage().status();
      EXPECT_TRUE(absl::IsPermissionDenied(outside)) << outside;
      EXPECT_NE(Message(outside).find("job.adapter"), std::string::npos) << outside;
    }
    std::filesystem::remove(link);
    std::filesystem::create_symlink(dir_ + "/files/job-abcdefgh23/merges.txt", link);
    EXPECT_TRUE(absl::IsNotFound(Stage().status())) << Stage().status();
    std::filesystem::remove(link);
    std::filesystem::create_symlink(dir_ + "/files/shared/merges.txt", link);
    EXPECT_TRUE(Stage().ok()) << Stage().status();
  }
}

}  // namespace
}  // namespace sft::worker
