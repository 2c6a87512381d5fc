#include "worker/channel/launch.h"

#include <gtest/gtest.h>

namespace sft::channel {
namespace {

ShimLaunch TwoRanks() {
  ShimLaunch launch;
  launch.attempt_uid = "a-1";
  launch.epoch = 4;
  launch.attempt_dir = "/data/attempts/a-1";
  launch.socket_path = "/data/run/a-1.sock";
  launch.prepare = {"prepare", -1, {"sft-rank", "prepare", "--launch", "launch.json"}, {}};
  for (int rank = 2; rank < 4; ++rank) {
    launch.ranks.push_back({"rank-" + std::to_string(rank),
                            rank,
                            {"sft-rank", "train", "a b \"c\""},
                            {{"OMP_NUM_THREADS", "1"}, {"LD_LIBRARY_PATH", "/x:/y"}}});
  }
  launch.grace_seconds = 2.5;
  launch.fencing_seconds = 900;
  return launch;
}

TEST(LaunchTest, AShimLaunchComesBackWithEveryMember) {
  const absl::StatusOr<ShimLaunch> back = ParseShimLaunch(ToJson(TwoRanks()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->attempt_uid, "a-1");
  EXPECT_EQ(back->epoch, 4);
  EXPECT_EQ(back->attempt_dir, "/data/attempts/a-1");
  EXPECT_EQ(back->socket_path, "/data/run/a-1.sock");
  EXPECT_EQ(back->prepare.argv.size(), 4u);
  EXPECT_EQ(back->prepare.rank, -1);
  ASSERT_EQ(back->ranks.size(), 2u);
  EXPECT_EQ(back->ranks[1].name, "rank-3");
  EXPECT_EQ(back->ranks[1].rank, 3);
  EXPECT_EQ(back->ranks[1].argv[2], "a b \"c\"");
  EXPECT_EQ(back->ranks[1].env.at("LD_LIBRARY_PATH"), "/x:/y");
  EXPECT_EQ(back->grace_seconds, 2.5);
  EXPECT_EQ(back->fencing_seconds, 900);
}

TEST(LaunchTest, ARankLaunchComesBackWithEveryMember) {
  RankLaunch launch;
  launch.attempt_uid = "a-1";
  launch.epoch = 4;
  launch.job_json = R"({"job":{"model":"x"}})";
  launch.world_size = 8;
  launch.first_rank = 4;
  launch.local_ranks = 4;
  launch.rendezvous = "10.0.0.1:2345";
  launch.device = "cuda";
  launch.threads_per_rank = 3;
  launch.model_dir = "/m";
  launch.model_name = "org/m";
  launch.train_file = "/t";
  launch.val_file = "/v";
  launch.cache_dir = "/c";
  launch.attempt_dir = "/a";
  launch.checkpoint_dir = "/k";
  launch.resume_dir = "/k/step-500";
  launch.resume_step = 500;
  launch.resume_changed = launch.resume_engine_alone = true;
  launch.output_dir = "/o";
  launch.job_id = "j-1";
  launch.train_name = "mine/rows.jsonl";
  launch.val_name = "mine/val.jsonl";
  const absl::StatusOr<RankLaunch> back = ParseRankLaunch(ToJson(launch));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToJson(*back), ToJson(launch));
  EXPECT_EQ(back->train_name, launch.train_name);
  EXPECT_EQ(back->val_name, launch.val_name);
  EXPECT_EQ(back->job_json, launch.job_json);
  EXPECT_EQ(back->first_rank, 4);
  EXPECT_EQ(back->threads_per_rank, 3);
  EXPECT_EQ(back->job_id, "j-1");
  EXPECT_EQ(back->resume_dir, "/k/step-500");
  EXPECT_EQ(back->resume_step, 500);
  EXPECT_TRUE(back->resume_changed && back->resume_engine_alone);
}

TEST(LaunchTest, AShimStatusComesBackWithEveryMember) {
  ShimStatus status;
  status.attempt_uid = "a-1";
  status.epoch = 2;
  status.shim_pid = 77;
  status.shim_start_ticks = 18'000'000'000'000'000'000u;
  status.state = "stopping";
  status.reason = "rank 1 failed";
  status.cause = "failure";
  status.processes = {{"rank-1", 1, 99, true, 0, 9, 2}};
  const absl::StatusOr<ShimStatus> back = ParseShimStatus(ToJson(status));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->shim_start_ticks, status.shim_start_ticks);
  EXPECT_EQ(back->reason, "rank 1 failed");
  EXPECT_EQ(back->cause, "failure");
  ASSERT_EQ(back->processes.size(), 1u);
  EXPECT_EQ(back->processes[0].pid, 99);
  EXPECT_TRUE(back->processes[0].exited);
  EXPECT_EQ(back->processes[0].signal, 9);
  EXPECT_EQ(back->processes[0].order, 2);
}

TEST(LaunchTest, ACommandAndItsAnswerAreOneLineEach) {
  const std::string line = ToLine(Command{"stop", "two\nlines"});
  EXPECT_EQ(line,
            "{\"command\":\"stop\",\"reason\":\"two\\nlines\",\"cause\":\"\",\"age\":0,"
            "\"id\":\"\",\"steps\":0}\n");
  EXPECT_EQ(ParseCommand(line)->reason, "two\nlines");
  const Command profile{.command = "profile", .reason = {}, .cause = {}, .id = "a", .steps = 3};
  EXPECT_EQ(ParseCommand(ToLine(profile))->id, "a");
  EXPECT_EQ(ParseCommand(ToLine(profile))->steps, 3);
  EXPECT_TRUE(absl::IsInvalidArgument(ParseCommand(R"({"reason":"x"})").status()));
  Answer answer{false, "unknown command", {}};
  answer.status.state = "running";
  const std::string text = ToLine(answer);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const absl::StatusOr<Answer> back = ParseAnswer(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_FALSE(back->ok);
  EXPECT_EQ(back->error, "unknown command");
  EXPECT_EQ(back->status.state, "running");
}

TEST(LaunchTest, RanksOutsideTheWorldAreRefused) {
  RankLaunch launch;
  launch.attempt_uid = "a";
  launch.attempt_dir = "/a";
  launch.world_size = 4;
  launch.first_rank = 3;
  launch.local_ranks = 2;
  EXPECT_TRUE(absl::IsInvalidArgument(ParseRankLaunch(ToJson(launch)).status()));
  launch.local_ranks = 1;
  EXPECT_TRUE(ParseRankLaunch(ToJson(launch)).ok());
}

TEST(LaunchTest, ASocketPathThatDoesNotFitIsRefusedBeforeAnythingStarts) {
  ShimLaunch launch = TwoRanks();
  launch.socket_path = "/" + std::string(106, 's');
  EXPECT_TRUE(ParseShimLaunch(ToJson(launch)).ok());
  launch.socket_path += "s";
  EXPECT_TRUE(absl::IsInvalidArgument(ParseShimLaunch(ToJson(launch)).status()));
}

TEST(LaunchTest, AProcessNameThatLeavesTheFolderIsRefused) {
  ShimLaunch launch = TwoRanks();
  launch.ranks[0].name = "../rank-0";
  EXPECT_TRUE(absl::IsInvalidArgument(ParseShimLaunch(ToJson(launch)).status()));
}

TEST(LaunchTest, AShimLaunchWithoutRanksOrArgumentsIsRefused) {
  ShimLaunch launch = TwoRanks();
  launch.ranks[1].argv.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(ParseShimLaunch(ToJson(launch)).status()));
  launch.ranks.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(ParseShimLaunch(ToJson(launch)).status()));
}

TEST(LaunchTest, NegativeTimesAreRefused) {
  ShimLaunch launch = TwoRanks();
  launch.grace_seconds = -1;
  EXPECT_TRUE(absl::IsInvalidArgument(ParseShimLaunch(ToJson(launch)).status()));
}

TEST(LaunchTest, AnErrorNamesTheMember) {
  const absl::Status status =
      ParseShimLaunch(R"({"attempt_uid":"a","attempt_dir":"/a","socket_path":"/s",
                          "ranks":[{"name":"rank-0","argv":["x",1]}]})")
          .status();
  EXPECT_EQ(Message(status), "shim launch: ranks: argv: expected a list of strings");
  EXPECT_EQ(Message(ParseShimStatus(R"({"state":"exited"})").status()),
            "shim status: attempt_uid: missing");
}

}  // namespace
}  // namespace sft::channel
