#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "client/base/exit_codes.h"
#include "client/base/interrupt.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/rpc/channel.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Ending {
  std::string_view name;
  v1::Job job;
  int code;

  friend void PrintTo(const Ending& e, std::ostream* out) { *out << e.name; }
};

class EndingTest : public ::testing::TestWithParam<Ending> {};

TEST_P(EndingTest, EveryWaitingCommandEndsWithTheVerdict) {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"wait", "job-a"}, {"status", "job-a", "--watch"}, {"logs", "job-a", "--follow"}}) {
    FakeServer server;
    server.watches = {{.jobs = {MakeJob("job-a", v1::Job::RUNNING), GetParam().job}}};
    server.log = "line\n";
    server.log_reads = {{.end = 5, .end_of_file = true}};
    const Outcome run = Sftctl(server, command);
    EXPECT_EQ(run.code, GetParam().code) << command[0] << "\n" << run.err;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, EndingTest,
    ::testing::Values(
        Ending{"Succeeded", MakeJob("job-a", v1::Job::SUCCEEDED), 0},
        Ending{"FailedByTheUser", MakeFailed("job-a", v1::Verdict::USER), 10},
        Ending{"FailedByTheMachines", MakeFailed("job-a", v1::Verdict::INFRASTRUCTURE), 11},
        Ending{"FailedForAnUnknownReason", MakeFailed("job-a", v1::Verdict::UNKNOWN), 11},
        Ending{"Cancelled", MakeJob("job-a", v1::Job::CANCELLED), 12}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(FollowTest, AWaitForACheckpointKnowsItsAnswerWithoutAClock) {
  const auto checkpoint = [](int attempt, int64_t step, int64_t seconds) {
    v1::Checkpoint made;
    made.set_attempt(attempt);
    made.set_step(step);
    made.mutable_commit_time()->set_seconds(seconds);
    return made;
  };
  const auto wait = [&](const v1::Checkpoint& written) {
    FakeServer server;
    server.checkpoints = {checkpoint(1, 12, 9000)};
    server.written = {written};
    *server.asked.mutable_job() = MakeJob("job-a", v1::Job::RUNNING);
    server.asked.mutable_job()->set_attempt(1);
    server.asked.set_step(12);
    server.asked.mutable_time()->set_seconds(8000);
    server.watches = {
        {.jobs = {MakeJob("job-a", v1::Job::RUNNING), MakeJob("job-a", v1::Job::CANCELLED)}}};
    return Sftctl(server, {"checkpoint", "job-a", "--wait"});
  };
  EXPECT_THAT(wait(checkpoint(1, 13, 5000)).out, HasSubstr("checkpoint of step 13"))
      << "the server's clock was set back";
  EXPECT_THAT(wait(checkpoint(2, 11, 9001)).out, HasSubstr("checkpoint of step 11"))
      << "the job was restarted from an earlier step";
  EXPECT_THAT(wait(checkpoint(1, 11, 9001)).err, HasSubstr("ended before it wrote one"));
}

TEST(FollowTest, AFailureSaysWhyAndWhatToDo) {
  FakeServer server;
  server.watches = {{.jobs = {MakeFailed("job-a", v1::Verdict::USER)}}};
  const Outcome run = Sftctl(server, {"wait", "job-a"});
  EXPECT_THAT(run.err, HasSubstr("it broke"));
  EXPECT_THAT(run.err, HasSubstr("what to do: mend it"));
  EXPECT_THAT(run.out, IsEmpty());
}

TEST(FollowTest, ALostServerIsWaitedFor) {
  FakeServer server;
  const grpc::Status lost(grpc::StatusCode::UNAVAILABLE, "gone");
  server.watches = {{.jobs = {MakeJob("job-a", v1::Job::RUNNING)}, .status = lost},
                    {.jobs = {}, .status = lost},
                    {.jobs = {MakeJob("job-a", v1::Job::SUCCEEDED)}}};
  const Outcome run = Sftctl(server, {"status", "job-a", "--watch"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.err, HasSubstr("lost the server"));
}

TEST(FollowTest, AServerLostBetweenTheLogsEndAndTheJobsIsWaitedFor) {
  FakeServer server;
  server.log = "line\n";
  server.log_reads = {{.end = 5, .end_of_file = true}};
  server.watches = {{.jobs = {}, .status = {grpc::StatusCode::UNAVAILABLE, "refused"}},
                    {.jobs = {MakeJob("job-a", v1::Job::SUCCEEDED)}}};
  const Outcome run = Sftctl(server, {"logs", "job-a", "--follow"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.err, HasSubstr("lost the server"));
}

TEST(FollowTest, AServerThatStaysAwayEndsTheWait) {
  FakeServer server;
  const grpc::Status lost(grpc::StatusCode::UNAVAILABLE, "gone");
  server.watches = {{.jobs = {MakeJob("job-a", v1::Job::RUNNING)}, .status = lost},
                    {.jobs = {}, .status = lost}};
  const Outcome run = Sftctl(server, {"wait", "job-a"});
  EXPECT_EQ(run.code, kUnreachable);
  EXPECT_THAT(run.err, HasSubstr("cannot reach sft-server at test:1"));
  EXPECT_THAT(run.err, ::testing::Not(HasSubstr("--dev"))) << "there is a server elsewhere";
}

TEST(FollowTest, ATimeoutEndsTheWaitNotTheJob) {
  FakeServer server;
  server.jobs["job-a"] = MakeJob("job-a", v1::Job::RUNNING);
  server.watches = {{.jobs = {MakeJob("job-a", v1::Job::RUNNING)}, .until_cancelled = true}};
  const Outcome run = Sftctl(server, {"wait", "job-a", "--timeout", "0s"});
  EXPECT_EQ(run.code, kUnreachable) << run.err;
  EXPECT_THAT(run.err, HasSubstr("has not ended within 0 s: it is RUNNING"));
}

TEST(FollowTest, ATimeoutOfZeroStillSeesThatTheJobHasEnded) {
  FakeServer server;
  server.jobs["job-a"] = MakeJob("job-a", v1::Job::SUCCEEDED);
  server.watches = {{.jobs = {MakeJob("job-a", v1::Job::SUCCEEDED)}}};
  EXPECT_EQ(Sftctl(server, {"wait", "job-a", "--timeout", "0s"}).code, kSucceeded);
  FakeServer empty;
  EXPECT_EQ(Sftctl(empty, {"wait", "job-z", "--timeout", "0s"}).code, kNotFound);
}

TEST(FollowTest, AFailureNamesTheLogThatSaysMore) {
  const auto hint = [](int rank, const std::string& process) {
    FakeServer server;
    v1::Job job = MakeFailed("job-a", v1::Verdict::USER);
    job.mutable_verdict()->set_rank(rank);
    job.mutable_verdict()->set_process(process);
    server.watches = {{.jobs = {job}}};
    return Sftctl(server, {"wait", "job-a"}).err;
  };
  EXPECT_THAT(hint(-1, "prepare"), HasSubstr("its log: `sftctl logs job-a --prepare`"));
  EXPECT_THAT(hint(2, "rank-2"), HasSubstr("its log: `sftctl logs job-a --rank 2`"));
  EXPECT_THAT(hint(0, "rank-0"), HasSubstr("its log: `sftctl logs job-a`"));
  EXPECT_THAT(hint(-1, ""), Not(HasSubstr("its log"))) << "nothing was started";
}

TEST(FollowTest, WhyAJobFailedIsSaidOnce) {
  FakeServer server;
  v1::Job job = MakeFailed("job-a", v1::Verdict::USER);
  const std::string message =
      "prepare: 2 rows cannot be used:\nrows.jsonl:3: no text\nrows.jsonl:7: no text";
  job.set_reason(message);
  job.mutable_verdict()->set_message(message);
  job.mutable_verdict()->add_evidence("prepare ended with exit code 64");
  job.mutable_verdict()->add_evidence(
      "last lines of prepare's log:\nsft-rank: 2 rows cannot be used:\nrows.jsonl:3: no text\n"
      "rows.jsonl:7: no text\nmend it\n");
  job.mutable_verdict()->add_evidence("last lines of rank 1's log:\nstep 3\nrows.jsonl:7: no text");
  v1::Job preparing = MakeJob("job-a", v1::Job::PREPARING);
  preparing.set_reason(message);
  server.watches = {{.jobs = {preparing, job}}};
  const std::string said = Sftctl(server, {"status", "job-a", "--watch"}).err;
  EXPECT_THAT(said, HasSubstr("job-a PREPARING: prepare: 2 rows cannot be used:\n"));
  EXPECT_EQ(said.find("rows.jsonl:3: no text"), said.rfind("rows.jsonl:3: no text")) << said;
  EXPECT_EQ(said.find("rows.jsonl:7: no text"), said.rfind("rows.jsonl:7: no text")) << said;
  EXPECT_THAT(said, HasSubstr("job-a FAILED\n"));
  EXPECT_THAT(said, HasSubstr("  prepare ended with exit code 64\n"));
  EXPECT_THAT(said, HasSubstr("  last lines of rank 1's log:\nstep 3\n"));
  EXPECT_THAT(said, Not(HasSubstr("last lines of prepare's log")));
}

TEST(FollowTest, WhatOthersWroteDoesNotReachTheTerminalAsItIs) {
  FakeServer server;
  v1::Job job = MakeFailed("job-a", v1::Verdict::USER);
  job.mutable_verdict()->set_message("bad \x1b[31mrow");
  job.mutable_verdict()->add_evidence("last lines:\n\x1b]0;title\x07");
  server.watches = {{.jobs = {job}}};
  const Outcome run = Sftctl(server, {"wait", "job-a"});
  EXPECT_THAT(run.err, Not(HasSubstr("\x1b")));
  EXPECT_THAT(run.err, HasSubstr("bad \\x1b[31mrow"));
  EXPECT_THAT(run.err, HasSubstr("last lines:\n\\x1b]0;title"));
}

TEST(MetricsFollowTest, ALostServerIsWaitedForAndNoPointComesTwice) {
  FakeServer server;
  for (int step = 1; step <= 3; ++step) {
    v1::Metric metric;
    metric.set_step(step);
    server.metrics.push_back(metric);
  }
  const grpc::Status lost(grpc::StatusCode::UNAVAILABLE, "Socket closed");
  server.metric_reads = {{.end = 0, .status = lost},
                         {.end = 2, .status = lost},
                         {.end = 2, .status = lost},
                         {.end = 3}};
  const Outcome run = Sftctl(server, {"metrics", "job-a", "--follow"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.err, HasSubstr("lost the server"));
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 3);
  EXPECT_THAT(server.metric_indexes, ::testing::ElementsAre(0, 0, 2, 2));
}

TEST(MetricsFollowTest, WithoutFollowALostServerEndsIt) {
  FakeServer server;
  server.metric_reads = {{.end = 0, .status = {grpc::StatusCode::UNAVAILABLE, "gone"}}};
  EXPECT_EQ(Sftctl(server, {"metrics", "job-a"}).code, kUnreachable);
}

TEST(FollowTest, AWatchThatEndsBeforeAnyAnswerIsAnError) {
  FakeServer server;
  server.watches = {{.jobs = {}}};
  const Outcome run = Sftctl(server, {"wait", "job-a"});
  EXPECT_EQ(run.code, kInternal);
  EXPECT_THAT(run.err, HasSubstr("ended the watch"));
}

TEST(FollowTest, AnUnknownJobIsNotFound) {
  FakeServer server;
  EXPECT_EQ(Sftctl(server, {"wait", "job-z"}).code, kNotFound);
}

TEST(FollowTest, APlainLineIsPrintedForEachStep) {
  FakeServer server;
  server.watches = {
      {.jobs = {MakeJob("job-a", v1::Job::RUNNING), MakeJob("job-a", v1::Job::SUCCEEDED)}}};
  v1::Metric step;
  step.set_step(1);
  step.set_total_steps(3);
  step.set_loss(1.5);
  step.set_tokens_per_second(1200);
  server.metrics = {step};
  const Outcome run = Sftctl(server, {"status", "job-a", "--watch"});
  EXPECT_THAT(run.err, HasSubstr("step 1/3  loss 1.5000"));
  EXPECT_THAT(run.err, HasSubstr("1.2k tok/s"));
  EXPECT_THAT(run.err, Not(HasSubstr("\r")));
}

TEST(FollowTest, ATerminalGetsABarWithLossAndSpeed) {
  FakeServer server;
  v1::Job running = MakeJob("job-a", v1::Job::RUNNING);
  running.mutable_progress()->set_step(1);
  running.mutable_progress()->set_total_steps(2);
  running.mutable_progress()->set_loss(1.5);
  running.mutable_progress()->set_tokens_per_second(850);
  server.watches = {{.jobs = {running, MakeJob("job-a", v1::Job::SUCCEEDED)}}};
  const Outcome run = Sftctl(server, {"status", "job-a", "--watch"}, /*terminal=*/true);
  EXPECT_THAT(run.err, HasSubstr("\r\033[K[="));
  EXPECT_THAT(run.err, HasSubstr("1/2  loss 1.5000  850 tok/s"));
}

TEST(FollowTest, JsonPrintsAnObjectALine) {
  FakeServer server;
  server.watches = {
      {.jobs = {MakeJob("job-a", v1::Job::RUNNING), MakeJob("job-a", v1::Job::SUCCEEDED)}}};
  const Outcome run = Sftctl(server, {"status", "job-a", "--watch", "--json"});
  std::istringstream lines(run.out);
  std::string line, states;
  while (std::getline(lines, line)) {
    states += ParseJson(line)["state"].get<std::string>() + " ";
  }
  EXPECT_EQ(states, "RUNNING SUCCEEDED ");
}

TEST(LogsTest, ABrokenStreamGoesOnAtTheByteItHadReached) {
  FakeServer server;
  server.log = "first line\nsecond line\n";
  server.log_reads = {{.end = 7, .status = {grpc::StatusCode::UNAVAILABLE, "gone"}},
                      {.end = 23, .end_of_file = true}};
  server.watches = {{.jobs = {MakeJob("job-a", v1::Job::SUCCEEDED)}}};
  const Outcome run = Sftctl(server, {"logs", "job-a", "--follow", "--rank", "2", "--tail", "9"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, server.log);
  ASSERT_EQ(server.log_requests.size(), 2u);
  EXPECT_EQ(server.log_requests[0].rank(), 2);
  EXPECT_EQ(server.log_requests[0].tail_lines(), 9);
  EXPECT_EQ(server.log_requests[1].offset(), 7);
  EXPECT_FALSE(server.log_requests[1].has_tail_lines());
}

TEST(LogsTest, AServerThatStopsInGoodOrderIsWaitedForToo) {
  FakeServer server;
  server.log = "first line\nsecond line\n";
  server.log_reads = {{.end = 7, .status = {grpc::StatusCode::CANCELLED, "CANCELLED"}},
                      {.end = 23, .end_of_file = true}};
  server.watches = {{.jobs = {MakeJob("job-a", v1::Job::SUCCEEDED)}}};
  const Outcome run = Sftctl(server, {"logs", "job-a", "--follow"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, server.log);
}

TEST(LogsTest, ATailOfZeroIsAskedForAsSuch) {
  FakeServer server;
  server.log_reads = {{.end = 0, .end_of_file = true}};
  EXPECT_EQ(Sftctl(server, {"logs", "job-a", "--tail", "0"}).code, kSucceeded);
  EXPECT_EQ(Sftctl(server, {"logs", "job-a"}).code, kSucceeded);
  ASSERT_EQ(server.log_requests.size(), 2u);
  EXPECT_TRUE(server.log_requests[0].has_tail_lines());
  EXPECT_FALSE(server.log_requests[1].has_tail_lines());
}

TEST(LogsTest, AnEmptyLogNamesTheOneOfThePreparation) {
  FakeServer server;
  server.log_reads = {{.end = 0, .end_of_file = true}};
  const Outcome run = Sftctl(server, {"logs", "job-a"});
  EXPECT_EQ(run.code, kSucceeded);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err, HasSubstr("sftctl logs job-a --prepare"));
}

// In a process of its own: the signal's effect lasts until the process ends.
void Detach(const std::vector<std::string>& command) {
  Interrupt::Install();
  // Once: a second one ends the process where it stands.
  const auto interrupt = [once = std::make_shared<std::once_flag>()] {
    std::call_once(*once, [] { kill(getpid(), SIGINT); });
  };
  FakeServer server;
  server.watches = {{.jobs = {MakeJob("job-a", v1::Job::RUNNING)},
                     .until_cancelled = true,
                     .on_written = interrupt}};
  server.metric_reads = {{.until_cancelled = true, .on_written = interrupt}};
  server.on_list = interrupt;
  const Outcome run = Sftctl(server, command);
  std::cerr << run.err;
  std::_Exit(run.code);
}

TEST(InterruptDeathTest, CtrlCDetachesAndSaysHowToComeBack) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exited = ::testing::ExitedWithCode(kInterrupted);
  const std::pair<std::vector<std::string>, const char*> commands[] = {
      {{"status", "job-a", "--watch"}, "detached; the job goes on.*sftctl status job-a --watch"},
      {{"wait", "job-a"}, "detached; the job goes on.*sftctl wait job-a"},
      {{"metrics", "job-a", "--follow"},
       "detached; the job goes on.*sftctl metrics job-a --follow"},
      {{"list"}, "interrupted; what was asked for may have been done"}};
  for (const auto& [command, told] : commands) {
    const MonoTime begin = Clock::Real().Mono();
    EXPECT_EXIT(Detach(command), exited, told);
    // No call is waited for: not even the one for metrics while a job is watched.
    EXPECT_LT(Clock::Real().Mono() - begin, rpc::kUnaryDeadline);
  }
}

}  // namespace
}  // namespace sft::client
