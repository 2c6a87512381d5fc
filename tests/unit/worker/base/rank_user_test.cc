#include "worker/base/rank_user.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/worker/base/test_node.h"
#include "worker/attempt/attempt_record.h"
#include "worker/base/child_process.h"
#include "worker/daemon/options.h"

namespace sft::worker {
namespace {

using std::chrono::seconds;

constexpr char kOther[] = "nobody";

class RankUserTest : public TestNode {
 protected:
  void SetUp() override {
    TestNode::SetUp();
    if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    const auto user = ChooseRankUser(kOther, false, 0);
    if (!user.ok()) GTEST_SKIP() << user.status();
    ASSERT_TRUE(user->has_value());
    user_ = **user;
    setup_.rank_user = user_;
    ASSERT_TRUE(io::MakeDirs(setup_.data_dir).ok());
    ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);
  }
  struct stat InfoOf(const std::string& path) {
    struct stat info {};
    EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
    return info;
  }

  std::optional<RankUser> user_;
};

std::string NameOf(uid_t uid) { return RankUserOf(uid, 0).name; }

Options Parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"sft-worker", "--data-dir", "/tmp/x"});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return ParseOptions(static_cast<int>(argv.size()), argv.data()).options;
}

TEST(RankUserOptionTest, TheOptionIsRead) {
  EXPECT_EQ(Parse({"--rank-user", "somebody"}).rank_user, "somebody");
  EXPECT_EQ(Parse({}).rank_user, "");
}

TEST(RankUserOptionTest, AWorkerThatIsNotRootStaysItsOwnUser) {
  EXPECT_FALSE(ChooseRankUser("", false, 65534)->has_value());
  const auto own = ChooseRankUser(NameOf(geteuid()), false, geteuid());
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_FALSE(own->has_value());
}

TEST(RankUserOptionTest, AnotherUserNeedsRoot) {
  const auto refused = ChooseRankUser("root", false, 65534);
  ASSERT_TRUE(absl::IsInvalidArgument(refused.status()));
  EXPECT_NE(refused.status().message().find("only a worker that runs as root"), std::string::npos)
      << refused.status();
}

TEST(RankUserOptionTest, AnUnknownUserIsAnErrorThatSaysHowToMakeIt) {
  const auto unknown = ChooseRankUser("no-such-user", false, 0);
  ASSERT_TRUE(absl::IsInvalidArgument(unknown.status()));
  EXPECT_NE(unknown.status().message().find("--rank-user no-such-user"), std::string::npos);
  EXPECT_NE(unknown.status().message().find("useradd"), std::string::npos);
}

TEST(RankUserOptionTest, RootKeepsRanksAsRootOnPurposeAndForDevelopment) {
  EXPECT_FALSE(ChooseRankUser("root", false, 0)->has_value());
  EXPECT_FALSE(ChooseRankUser("", true, 0)->has_value());
}

TEST_F(RankUserTest, AProgramIsStartedAsTheUserWithItsGroupsAloneAndForGood) {
  const auto result =
      RunChild({"/bin/sh", "-c", "cat /proc/self/status; echo HOME=$HOME USER=$USER"}, {},
               seconds(60), user_);
  ASSERT_TRUE(result.ok()) << result.status();
  const std::string uid = std::to_string(user_->uid);
  const std::string gid = std::to_string(user_->gid);
  const auto has = [&](const std::string& line) {
    EXPECT_NE(result->output.find(line), std::string::npos) << line << "\n" << result->output;
  };
  has("Uid:\t" + uid + "\t" + uid + "\t" + uid + "\t" + uid + "\n");
  has("Gid:\t" + gid + "\t" + gid + "\t" + gid + "\t" + gid + "\n");
  has("Groups:\t" + gid + " \n");
  has("NoNewPrivs:\t1\n");
  has("CapEff:\t0000000000000000\n");
  has("HOME=" + user_->home + " USER=" + user_->name);
}

TEST_F(RankUserTest, AProgramOfTheUserMayPinMemoryAsRootMay) {
  const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  if (setrlimit(RLIMIT_MEMLOCK, &unlimited) != 0) GTEST_SKIP() << "not even root may raise it here";
  const rlimit low{65536, RLIM_INFINITY};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &low), 0);
  const auto result = RunChild({"/bin/sh", "-c", "cat /proc/self/limits"}, {}, seconds(60), user_);
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  ASSERT_TRUE(result.ok()) << result.status();
  const size_t line = result->output.find("Max locked memory");
  ASSERT_NE(line, std::string::npos);
  EXPECT_EQ(result->output.substr(line + 26, 9), "unlimited") << result->output.substr(line, 60);
}

TEST_F(RankUserTest, AProgramThatTheUserMayNotRunIsReported) {
  Write(dir_ + "/program", "#!/bin/sh\n");
  ASSERT_EQ(chmod((dir_ + "/program").c_str(), 0700), 0);
  const absl::Status refused = RunChild({dir_ + "/program"}, {}, seconds(60), user_).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_NE(refused.message().find("as user nobody"), std::string::npos) << refused;
  EXPECT_TRUE(absl::IsNotFound(RunChild({"/nowhere/x"}, {}, seconds(60), user_).status()));
}

TEST_F(RankUserTest, TheRightsOfRanksAreTakenAndGivenBack) {
  Write(dir_ + "/secret", "s");
  ASSERT_EQ(chmod((dir_ + "/secret").c_str(), 0600), 0);
  ASSERT_EQ(symlink((dir_ + "/secret").c_str(), (dir_ + "/link").c_str()), 0);
  Write(dir_ + "/group", "g");  // with root's group
  ASSERT_EQ(chmod((dir_ + "/group").c_str(), 0640), 0);
  ASSERT_EQ(mkdir((dir_ + "/theirs").c_str(), 0700), 0);
  ASSERT_EQ(chown((dir_ + "/theirs").c_str(), user_->uid, user_->gid), 0);
  {
    const RankRights rights(user_);
    const RankRights again(user_);
    for (const char* name : {"/secret", "/link", "/group"}) {
      EXPECT_TRUE(absl::IsPermissionDenied(io::ReadFile(dir_ + name).status())) << name;
    }
    EXPECT_FALSE(io::WriteFileAtomic(dir_ + "/new", "x").ok());
    EXPECT_TRUE(io::WriteFileAtomic(dir_ + "/theirs/new", "x").ok());
  }
  EXPECT_EQ(*io::ReadFile(dir_ + "/secret"), "s");
  EXPECT_EQ(InfoOf(dir_ + "/theirs/new").st_uid, user_->uid);
  EXPECT_TRUE(io::WriteFileAtomic(dir_ + "/new", "x").ok());
  EXPECT_EQ(InfoOf(dir_ + "/new").st_uid, 0u);
}

TEST_F(RankUserTest, InASharedFolderRanksCannotTouchTheWorkersFiles) {
  const std::string dir = dir_ + "/both";
  ASSERT_TRUE(LetRanksWrite(dir, user_).ok());
  Write(dir + "/record", "r");
  ASSERT_EQ(chmod((dir + "/record").c_str(), 0600), 0);
  Write(dir + "/launch", "l");
  ASSERT_TRUE(LetRanksRead(dir + "/launch", user_).ok());
  const auto as_rank = [&](const std::string& script) {
    return RunChild({"/bin/sh", "-c", "cd " + dir + " && " + script}, {}, seconds(60), user_)->ok();
  };
  EXPECT_TRUE(as_rank("cat launch && echo mine > mine && mv mine other"));
  EXPECT_FALSE(as_rank("cat record"));
  EXPECT_FALSE(as_rank("echo x >> launch"));
  EXPECT_FALSE(as_rank("mv record gone"));
  EXPECT_FALSE(as_rank("rm -f launch"));
  EXPECT_FALSE(as_rank("mv other record"));
  EXPECT_EQ(*io::ReadFile(dir + "/record"), "r");
}

TEST_F(RankUserTest, TheDataFolderIsPassableAndSharedFoldersAreWritable) {
  setup_.shared_dir = setup_.data_dir + "/shared";
  Write(setup_.data_dir + "/tls/node.key", "k");
  Write(setup_.data_dir + "/cache/rows", "c");
  Write(setup_.data_dir + "/attempts/a-1/attempt.json", "{}");
  ASSERT_EQ(chmod(setup_.data_dir.c_str(), 0755), 0);
  ASSERT_TRUE(PrepareDataDir(setup_).ok());
  ASSERT_TRUE(PrepareDataDir(setup_).ok()) << "the next start";
  EXPECT_EQ(InfoOf(setup_.data_dir).st_mode & 07777, 0710u);
  EXPECT_EQ(InfoOf(setup_.data_dir).st_uid, 0u);
  EXPECT_EQ(InfoOf(setup_.data_dir + "/cache/rows").st_uid, user_->uid);
  EXPECT_EQ(InfoOf(setup_.data_dir + "/tls").st_mode & 07777, 0700u);
  const RankRights rights(user_);
  EXPECT_TRUE(io::ReadFile(setup_.data_dir + "/cache/rows").ok());
  EXPECT_TRUE(TryWrite(setup_.shared_dir).ok());
  EXPECT_FALSE(io::ReadFile(setup_.data_dir + "/tls/node.key").ok());
  EXPECT_FALSE(io::ReadFile(setup_.data_dir + "/attempts/a-1/attempt.json").ok());
  EXPECT_FALSE(io::ListDir(setup_.data_dir).ok());
  EXPECT_FALSE(io::ListDir(setup_.data_dir + "/attempts").ok());
}

TEST_F(RankUserTest, TheDataFolderAndItsPartsMayBeLinksToALargerDisk) {
  ASSERT_TRUE(io::MakeDirs(dir_ + "/disk/data").ok());
  ASSERT_EQ(chmod((dir_ + "/disk").c_str(), 0755), 0);
  Write(dir_ + "/disk/cache/rows", "c");
  ASSERT_TRUE(io::RemoveAll(setup_.data_dir).ok());
  ASSERT_EQ(symlink((dir_ + "/disk/data").c_str(), setup_.data_dir.c_str()), 0);
  ASSERT_EQ(symlink((dir_ + "/disk/cache").c_str(), (dir_ + "/disk/data/cache").c_str()), 0);
  setup_.shared_dir = setup_.data_dir + "/shared";
  // Everybody may make links beside it.
  ASSERT_EQ(chmod(dir_.c_str(), 01777), 0);
  ASSERT_TRUE(CheckDataDirFor(setup_).ok());
  const absl::Status prepared = PrepareDataDir(setup_);
  ASSERT_TRUE(prepared.ok()) << prepared;
  EXPECT_EQ(InfoOf(dir_ + "/disk/data").st_mode & 07777, 0710u);
  EXPECT_EQ(InfoOf(dir_ + "/disk/cache/rows").st_uid, user_->uid);
}

TEST_F(RankUserTest, WithTheOptionAFolderNamedSharedIsTheOperators) {
  setup_.has_shared = true;
  setup_.shared_dir = setup_.data_dir + "/shared";
  ASSERT_TRUE(io::MakeDirs(setup_.shared_dir).ok());
  ASSERT_EQ(chmod(setup_.shared_dir.c_str(), 0777), 0);
  ASSERT_TRUE(PrepareDataDir(setup_).ok());
  EXPECT_EQ(InfoOf(setup_.shared_dir).st_mode & 07777, 0777u);
}

TEST_F(RankUserTest, ARecordThatTheWorkerDidNotWriteIsRefused) {
  const std::string dir = dir_ + "/attempt", file = dir + "/attempt.json";
  AttemptRecord record;
  record.uid = "a-1";
  ASSERT_TRUE(SaveRecord(record, dir).ok());
  ASSERT_TRUE(LoadRecord(dir).ok());
  ASSERT_EQ(chown(file.c_str(), user_->uid, user_->gid), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(LoadRecord(dir).status())) << LoadRecord(dir).status();
  ASSERT_EQ(chown(file.c_str(), 0, 0), 0);
  ASSERT_EQ(rename(file.c_str(), (dir_ + "/elsewhere").c_str()), 0);
  EXPECT_TRUE(absl::IsNotFound(LoadRecord(dir).status()));
  ASSERT_EQ(symlink((dir_ + "/elsewhere").c_str(), file.c_str()), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(LoadRecord(dir).status())) << LoadRecord(dir).status();
}

TEST_F(RankUserTest, ADataFolderOfAnotherUserIsRefused) {
  ASSERT_EQ(chown(setup_.data_dir.c_str(), user_->uid, user_->gid), 0);
  const absl::Status refused = PrepareDataDir(setup_);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_NE(refused.message().find("chown -R root:root"), std::string::npos) << refused;
}

TEST_F(RankUserTest, FoldersThatRanksCannotReachAreReportedWithAdvice) {
  EXPECT_TRUE(CheckDataDirFor(setup_).ok());
  ASSERT_EQ(chmod(dir_.c_str(), 0700), 0);
  const absl::Status closed = CheckDataDirFor(setup_);
  EXPECT_NE(closed.message().find("chmod o+x " + dir_), std::string::npos) << closed;
  ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);
  ASSERT_TRUE(io::MakeDirs(setup_.shared_dir).ok());
  const absl::Status shared = CheckSharedFor(setup_);
  EXPECT_NE(shared.message().find("chown -R nobody " + setup_.shared_dir), std::string::npos)
      << shared;
}

}  // namespace
}  // namespace sft::worker
