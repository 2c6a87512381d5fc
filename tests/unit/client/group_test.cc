#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/base/exit_codes.h"
#include "common/base/json.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class GroupTest : public ::testing::Test {
 protected:
  void Add(const std::string& id, const std::string& group, v1::Job::State state,
           const std::string& project = "p") {
    v1::Job job = MakeJob(id, state);
    job.set_group(group);
    job.set_project(project);
    server_.jobs[id] = job;
  }
  v1::Job::State StateOf(const std::string& id) { return server_.jobs.at(id).state(); }

  FakeServer server_;
};

TEST_F(GroupTest, ListShowsItsJobsAlone) {
  Add("job-a", "v2-lr", v1::Job::RUNNING);
  Add("job-b", "v2-lr", v1::Job::SUCCEEDED);
  Add("job-c", "", v1::Job::RUNNING);
  const auto list = ParseJson(Sftctl(server_, {"list", "--group", "v2-lr", "--json"}).out);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["group"], "v2-lr");
  EXPECT_THAT(Sftctl(server_, {"status", "job-a"}).out, HasSubstr("group      v2-lr\n"));
  EXPECT_THAT(Sftctl(server_, {"status", "job-c"}).out, Not(HasSubstr("group")));
  const Outcome none = Sftctl(server_, {"list", "--group", "v3"});
  EXPECT_EQ(none.code, kNotFound);
  EXPECT_THAT(none.err, HasSubstr("no group \"v3\""));
}

TEST_F(GroupTest, CancelShowsWhatItWouldCancelBeforeItIsTold) {
  Add("job-a", "v2", v1::Job::RUNNING);
  Add("job-b", "v2", v1::Job::SUCCEEDED);
  Add("job-c", "", v1::Job::RUNNING);
  Add("job-d", "v2", v1::Job::PENDING);
  const Outcome shown = Sftctl(server_, {"cancel", "--group", "v2"});
  EXPECT_EQ(shown.code, kUsage);
  EXPECT_THAT(shown.err, HasSubstr("add --yes to cancel these 2 jobs of group \"v2\""));
  EXPECT_THAT(shown.err, HasSubstr("job-d"));
  EXPECT_EQ(StateOf("job-a"), v1::Job::RUNNING);
  const Outcome done = Sftctl(server_, {"cancel", "--group", "v2", "--yes"});
  EXPECT_EQ(done.code, kSucceeded) << done.err;
  EXPECT_EQ(StateOf("job-a"), v1::Job::CANCELLING);
  EXPECT_EQ(StateOf("job-d"), v1::Job::CANCELLING);
  EXPECT_EQ(StateOf("job-b"), v1::Job::SUCCEEDED);
  EXPECT_EQ(StateOf("job-c"), v1::Job::RUNNING);
  EXPECT_EQ(Sftctl(server_, {"cancel", "--group", "nope", "--yes"}).code, kNotFound);
  EXPECT_EQ(Sftctl(server_, {"cancel", "job-a", "--group", "v2"}).code, kUsage);
  EXPECT_EQ(Sftctl(server_, {"cancel", "job-a", "--yes"}).code, kUsage);
}

TEST_F(GroupTest, ALabelOfTwoProjectsIsNotCancelledInBoth) {
  Add("job-a", "v2", v1::Job::RUNNING, "p");
  Add("job-b", "v2", v1::Job::RUNNING, "q");
  const Outcome run = Sftctl(server_, {"cancel", "--group", "v2", "--yes"});
  EXPECT_EQ(run.code, kUsage);
  EXPECT_THAT(run.err, HasSubstr("both have jobs of group \"v2\": choose one with --project"));
  EXPECT_EQ(StateOf("job-a"), v1::Job::RUNNING);
  EXPECT_EQ(StateOf("job-b"), v1::Job::RUNNING);
}

// It knows no groups and answers with every job there is.
TEST_F(GroupTest, AnOlderServersAnswerCancelsNothing) {
  Add("job-a", "", v1::Job::RUNNING);
  server_.knows_groups = false;
  for (const std::vector<std::string>& command : {std::vector<std::string>{"list", "--group", "v2"},
                                                  {"cancel", "--group", "v2", "--yes"},
                                                  {"compare", "--group", "v2"}}) {
    const Outcome run = Sftctl(server_, command);
    EXPECT_EQ(run.code, kRefused) << command[0];
    EXPECT_THAT(run.err, HasSubstr("the server is older than groups")) << command[0];
  }
  EXPECT_EQ(StateOf("job-a"), v1::Job::RUNNING);
}

TEST_F(GroupTest, CompareTakesAllOfIt) {
  Add("job-a", "v2", v1::Job::SUCCEEDED);
  const Outcome one = Sftctl(server_, {"compare", "--group", "v2"});
  EXPECT_EQ(one.code, kRefused);
  EXPECT_THAT(one.err, HasSubstr("has one job, job-a"));
  Add("job-b", "v2", v1::Job::SUCCEEDED);
  Add("job-c", "", v1::Job::SUCCEEDED);
  const auto compared = ParseJson(Sftctl(server_, {"compare", "--group", "v2", "--json"}).out);
  EXPECT_EQ(compared["runs"].size(), 2u);
  EXPECT_EQ(Sftctl(server_, {"compare"}).code, kUsage);
  EXPECT_EQ(Sftctl(server_, {"compare", "job-a"}).code, kUsage);
}

TEST_F(GroupTest, SubmitSendsTheLabelAsAnOverride) {
  const std::string file = WriteTestFile("job.yaml", "job: {model: m}\n");
  server_.resolution.set_checked_for_submit(true);
  EXPECT_EQ(Sftctl(server_, {"submit", file, "--group", "v2-lr"}).code, kSucceeded);
  ASSERT_EQ(server_.submitted.size(), 1u);
  EXPECT_EQ(server_.submitted[0].file_name(), "job.yaml");
  ASSERT_EQ(server_.submitted[0].overrides_size(), 1);
  EXPECT_EQ(server_.submitted[0].overrides(0).key(), "job.group");
  EXPECT_EQ(server_.submitted[0].overrides(0).value(), "v2-lr");
  EXPECT_EQ(Sftctl(server_, {"submit", file, "--group", ""}).code, kUsage);
}

}  // namespace
}  // namespace sft::client
