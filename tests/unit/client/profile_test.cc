#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "client/base/exit_codes.h"
#include "common/base/json.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class ProfileTest : public ::testing::Test {
 protected:
  ProfileTest() : path_(TestFolder() + "/t.json.gz") {
    v1::ProfileJobResponse response;
    response.set_waiting("rank 1: step 4 of 9");
    server_.profile.assign(2, response);
    AddRank(0, 0.75);
    AddRank(1, 0.25);
    for (const char* bytes : {"ab", "cd"}) {
      response.Clear();
      response.set_trace(bytes);
      server_.profile.push_back(response);
    }
  }
  // Two steps of half a second, of which so much was attention.
  void AddRank(int rank, double attention) {
    v1::ProfileJobResponse response;
    v1::RankProfile& profile = *response.mutable_rank();
    profile.set_rank(rank);
    profile.set_device("cpu");
    profile.set_first_step(5);
    profile.set_steps(2);
    profile.set_seconds(1);
    const auto add = [&](const char* kind, double seconds) {
      v1::ProfileShare& share = *profile.add_shares();
      share.set_kind(kind);
      share.set_seconds(seconds);
    };
    add("attention", attention);
    add("quantisation", 0);
    add("host", 1 - attention);
    profile.set_step_seconds_before(0.4);
    profile.set_stall_seconds(0.02);
    profile.set_events(100);
    profile.set_events_left_out(rank);
    if (rank == 1) profile.add_notes("2 of 3 steps: the training ended");
    server_.profile.push_back(response);
  }
  Outcome Profile(const std::vector<std::string>& flags = {}) {
    std::vector<std::string> arguments = {"profile", "job-a", "-o", path_};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return Sftctl(server_, arguments);
  }

  FakeServer server_;
  const std::string path_;
};

TEST_F(ProfileTest, TheTableAndTheTraceAreShown) {
  const Outcome run = Profile({"--steps", "2", "--rank", "all"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(ReadTestFile(path_), "abcd");
  EXPECT_EQ(server_.profile_requests.at(0).steps(), 2);
  EXPECT_TRUE(server_.profile_requests.at(0).all_ranks());
  EXPECT_EQ(run.err, "waiting for rank 1: step 4 of 9\n") << "said once";
  EXPECT_THAT(run.out, AllOf(HasSubstr("rank 0 on cpu: steps 5 to 6, 0.5000 s each (0.4000 s "
                                       "before: +25.0 %"),
                             ContainsRegex("attention +375.000 ms +75.00 % +125.000 ms +25.00 %"),
                             ContainsRegex("total +500.000 ms +100.00 % +500.000 ms"),
                             HasSubstr("lacks the last 1 of 101 events"),
                             HasSubstr("2 of 3 steps: the training ended"),
                             HasSubstr(path_ + " (4 B): open it in https://ui.perfetto.dev")));
  EXPECT_THAT(run.out, Not(HasSubstr("quantisation"))) << "no rank had any";
}

TEST_F(ProfileTest, JsonHasTheStableMembers) {
  const Outcome run = Profile({"--json"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  const auto json = ParseJson(run.out);
  EXPECT_EQ(json["trace"], path_);
  EXPECT_EQ(json["trace_bytes"], 4);
  ASSERT_EQ(json["ranks"].size(), 2u);
  const auto& rank = json["ranks"][1];
  EXPECT_EQ(rank["shares"]["host"], 0.75);
  EXPECT_EQ(rank["shares"]["quantisation"], 0);
  for (const char* key :
       {"rank", "device", "first_step", "steps", "seconds", "hidden_communication_seconds",
        "step_seconds_before", "stall_seconds", "events", "events_left_out", "notes"}) {
    EXPECT_TRUE(rank.contains(key)) << key;
  }
  EXPECT_EQ(run.err, "");
}

TEST_F(ProfileTest, ATraceThatBreaksOffLeavesNoFileAndTouchesNoOlderOne) {
  std::ofstream(path_) << "older";
  server_.profile_status = {grpc::StatusCode::FAILED_PRECONDITION, "rank 0: the training ended"};
  const Outcome run = Profile();
  EXPECT_NE(run.code, kSucceeded);
  EXPECT_THAT(run.err, HasSubstr("rank 0: the training ended"));
  EXPECT_EQ(ReadTestFile(path_), "older");
  const std::filesystem::directory_iterator files(std::filesystem::path(path_).parent_path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(ProfileTest, AServerThatSendsNoTraceOrNoTableIsAnError) {
  server_.profile.resize(4);
  EXPECT_THAT(Profile().err, HasSubstr("has sent no trace"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(ProfileTest, AFolderThatIsNotThereIsSaid) {
  const Outcome run = Sftctl(server_, {"profile", "job-a", "-o", path_ + "/no/t.gz"});
  EXPECT_NE(run.code, kSucceeded);
  EXPECT_THAT(run.err, HasSubstr("no/t.gz"));
}

TEST_F(ProfileTest, SeveralRanksAreNamedByCommas) {
  AddRank(0, 0.25);
  Profile({"--rank", "0,8,16"});
  ASSERT_EQ(server_.profile_requests.size(), 1u);
  EXPECT_THAT(server_.profile_requests[0].ranks(), ::testing::ElementsAre(0, 8, 16));
}

TEST_F(ProfileTest, FlagsThatMakeNoSenseAreRefusedBeforeTheCall) {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--steps", "0"},
                                             {"--steps", "21"},
                                             {"--rank", "first"},
                                             {"--rank", "-1"},
                                             {"--rank", "1,"}}) {
    const Outcome run = Profile(flags);
    EXPECT_EQ(run.code, kUsage) << flags[1];
    EXPECT_THAT(run.err, HasSubstr(flags[0]));
  }
  EXPECT_TRUE(server_.profile_requests.empty());
}

}  // namespace
}  // namespace sft::client
