#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "client/base/exit_codes.h"
#include "common/base/json.h"
#include "common/base/version.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StatusTest, JsonHasTheStableMembers) {
  FakeServer server;
  v1::Job job = MakeJob("job-a", v1::Job::RUNNING);
  job.set_reason("on n1");
  job.set_attempt(2);
  job.add_nodes("nodes/n1");
  job.mutable_progress()->set_step(3);
  job.mutable_progress()->set_total_steps(10);
  job.mutable_progress()->set_loss(std::nan(""));
  server.jobs["job-a"] = job;
  const Outcome run = Sftctl(server, {"status", "job-a", "--json"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  const auto json = ParseJson(run.out);
  EXPECT_EQ(json["job"], "job-a");
  EXPECT_EQ(json["state"], "RUNNING");
  EXPECT_EQ(json["reason"], "on n1");
  EXPECT_EQ(json["attempt"], 2);
  EXPECT_EQ(json["nodes"].size(), 1u);
  for (const char* key :
       {"step", "total_steps", "loss", "tokens_per_second", "gpu_memory_bytes", "eta_seconds"}) {
    EXPECT_TRUE(json["progress"].contains(key)) << key;
  }
  EXPECT_EQ(json["progress"]["loss"], "nan");
}

TEST(StatusTest, PeopleSeeStateReasonAndProgress) {
  FakeServer server;
  v1::Job job = MakeJob("job-a", v1::Job::PENDING);
  job.set_reason("waits for H100-4x: 4 of 8 are free");
  server.jobs["job-a"] = job;
  const Outcome run = Sftctl(server, {"status", "job-a"});
  EXPECT_THAT(run.out, HasSubstr("PENDING: waits for H100-4x: 4 of 8 are free"));
}

TEST(AccessTest, ATokenOfNoLifeIsNotTakenForOneWithoutAnEnd) {
  FakeServer server;
  const Outcome run = Sftctl(server, {"admin", "token", "create", "ann", "--expires", "0s"});
  EXPECT_EQ(run.code, kUsage);
  EXPECT_THAT(run.err, HasSubstr("`never` makes one without an end"));
}

TEST(StatusTest, AnUnknownJobIsNotFound) {
  FakeServer server;
  const Outcome run = Sftctl(server, {"status", "job-z"});
  EXPECT_EQ(run.code, kNotFound);
  EXPECT_THAT(run.err, HasSubstr("job-z"));
  EXPECT_THAT(run.out, IsEmpty());
}

TEST(StatusTest, WithoutAJobTheNewestIsShown) {
  FakeServer server;
  EXPECT_EQ(Sftctl(server, {"status"}).code, kNotFound);
  EXPECT_THAT(Sftctl(server, {"status"}).err, HasSubstr("there is no job yet"));
  server.jobs["job-a"] = MakeJob("job-a", v1::Job::RUNNING);  // listed first: the newest
  server.jobs["job-b"] = MakeJob("job-b", v1::Job::SUCCEEDED);
  const Outcome run = Sftctl(server, {"status", "--json"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(ParseJson(run.out)["job"], "job-a");
}

TEST(ListTest, ANameCannotBreakTheTable) {
  FakeServer server;
  v1::Job job = MakeJob("job-a", v1::Job::PENDING);
  job.set_display_name("\x1b[2Jevil\nline");
  job.set_reason("first\nsecond");
  server.jobs["job-a"] = job;
  const Outcome run = Sftctl(server, {"list"});
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 2) << run.out;
  EXPECT_THAT(run.out, ::testing::Not(HasSubstr("\x1b")));
  EXPECT_THAT(run.out, HasSubstr("\\x1b[2Jevil line"));
  EXPECT_THAT(Sftctl(server, {"status", "job-a"}).out, ::testing::Not(HasSubstr("\x1b")));
}

TEST(OutputTest, WhatCannotBeWrittenIsNoSuccess) {
  FakeServer server;
  server.jobs["job-a"] = MakeJob("job-a", v1::Job::SUCCEEDED);
  std::ofstream full("/dev/full");
  std::ostringstream err;
  FakeClock clock;
  const Console console{full, err};
  const Connect connect = [&](const std::string&) {
    return std::make_unique<Connection>(server.Channel(), "test:1", console, clock);
  };
  for (const std::vector<const char*>& argv :
       std::vector<std::vector<const char*>>{{"sftctl", "list"}, {"sftctl", "--help"}}) {
    full.clear();
    EXPECT_EQ(RunApp(static_cast<int>(argv.size()), argv.data(), console, connect), kInternal);
    EXPECT_THAT(err.str(), HasSubstr("standard output cannot be written to"));
    err.str("");
  }
}

TEST(UsageTest, AMisspeltCommandIsNamedAndTheNearestSuggested) {
  FakeServer server;
  const Outcome near = Sftctl(server, {"stauts", "job-a"});
  EXPECT_EQ(near.code, kUsage);
  EXPECT_THAT(near.err, HasSubstr("no command is called 'stauts', did you mean status?"));
  const Outcome far = Sftctl(server, {"bogus"});
  EXPECT_EQ(far.code, kUsage);
  EXPECT_THAT(far.err, HasSubstr("no command is called 'bogus'; `sftctl --help` lists them"));
}

TEST(UsageTest, CountsAreWholeNumbers) {
  FakeServer server;
  for (const std::vector<std::string>& bad : std::vector<std::vector<std::string>>{
           {"list", "--limit", "0"}, {"list", "--limit", "x"}, {"logs", "job-a", "--tail", "-1"}}) {
    const Outcome run = Sftctl(server, bad);
    EXPECT_EQ(run.code, kUsage);
    EXPECT_THAT(run.err, HasSubstr(bad[bad.size() - 2] + ": must be a whole number from"));
  }
}

TEST(ListTest, ReadsEveryPage) {
  FakeServer server;
  for (const char* id : {"job-a", "job-b", "job-c"}) {
    server.jobs[id] = MakeJob(id, v1::Job::RUNNING);
  }
  const Outcome run = Sftctl(server, {"list"});
  for (const char* id : {"job-a", "job-b", "job-c"}) EXPECT_THAT(run.out, HasSubstr(id));
  EXPECT_EQ(ParseJson(Sftctl(server, {"list", "--json"}).out).size(), 3u);
  EXPECT_EQ(ParseJson(Sftctl(server, {"list", "--json", "--limit", "2"}).out).size(), 2u);
  EXPECT_EQ(Sftctl(server, {"list", "--state", "ASLEEP"}).code, kUsage);
}

TEST(ListTest, FiltersAndOrderAreTheServersAndWhatIsLeftIsCounted) {
  FakeServer server;
  for (const char* id : {"job-a", "job-b", "job-c"})
    server.jobs[id] = MakeJob(id, v1::Job::RUNNING);
  const Outcome run = Sftctl(server, {"list", "--owner", "ann", "--match", "lr=", "--limit", "2"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.err, "2 of 3 jobs; --limit shows more\n");
  ASSERT_EQ(server.listed.size(), 2u);
  EXPECT_EQ(server.listed[0].owner(), "ann");
  EXPECT_EQ(server.listed[0].query(), "lr=");
  EXPECT_EQ(server.listed[0].order_by(), "submitted desc");
  EXPECT_TRUE(server.listed[0].count());
  EXPECT_FALSE(server.listed[1].count()) << "once is enough";
  const auto order = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {"list"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    EXPECT_EQ(Sftctl(server, arguments).code, kSucceeded);
    return server.listed.back().order_by();
  };
  EXPECT_EQ(order({"--sort", "name"}), "name");
  EXPECT_EQ(order({"--sort", "name", "--reverse"}), "name desc");
  EXPECT_EQ(order({"--sort", "ended"}), "ended desc");
  EXPECT_EQ(order({"--sort", "started", "--reverse"}), "started");
  EXPECT_EQ(Sftctl(server, {"list", "--sort", "age"}).code, kUsage);
}

TEST(ListTest, AnEarlierServerThatWouldListOthersIsRefused) {
  FakeServer server;
  server.counts_jobs = false;
  server.jobs["job-a"] = MakeJob("job-a", v1::Job::RUNNING);
  EXPECT_EQ(Sftctl(server, {"list"}).code, kSucceeded);
  const Outcome run = Sftctl(server, {"list", "--owner", "ann"});
  EXPECT_NE(run.code, kSucceeded);
  EXPECT_EQ(run.out, "");
  EXPECT_THAT(run.err, HasSubstr("the server is older than --owner"));
}

TEST(ListTest, AFilterIsTheServersAndTheTableAsksForWhatItShows) {
  FakeServer server;
  server.jobs["job-a"] = MakeJob("job-a", v1::Job::RUNNING);
  EXPECT_EQ(Sftctl(server, {"list", "--filter", "state=running llama"}).code, kSucceeded);
  ASSERT_EQ(server.listed.size(), 1u);
  EXPECT_EQ(server.listed[0].filter(), "state=running llama");
  EXPECT_THAT(server.listed[0].fields(), ::testing::Contains("progress"));
  EXPECT_EQ(Sftctl(server, {"list", "--json"}).code, kSucceeded);
  EXPECT_EQ(server.listed[1].fields_size(), 0) << "a program gets all";
  server.knows_filters = false;
  for (const char* const command : {"list", "top"}) {
    const Outcome run = Sftctl(server, {command, "--filter", "llama"});
    EXPECT_NE(run.code, kSucceeded);
    EXPECT_EQ(run.out, "");
    EXPECT_THAT(run.err, HasSubstr("the server is older than the filter"));
  }
}

TEST(ListTest, ASweepThatIsNotThereIsNotFound) {
  FakeServer server;
  const Outcome run = Sftctl(server, {"list", "--sweep", "nope"});
  EXPECT_EQ(run.code, kNotFound);
  EXPECT_EQ(run.out, "");
  EXPECT_THAT(run.err, HasSubstr("no sweep \"nope\""));
}

TEST(CancelTest, PrintsTheStateItLeft) {
  FakeServer server;
  server.jobs["job-a"] = MakeJob("job-a", v1::Job::RUNNING);
  const Outcome run = Sftctl(server, {"cancel", "job-a"});
  EXPECT_EQ(run.code, kSucceeded);
  EXPECT_EQ(run.out, "job-a CANCELLING\n");
}

TEST(MetricsTest, JsonIsOneObjectALine) {
  FakeServer server;
  for (int step = 1; step <= 3; ++step) {
    v1::Metric metric;
    metric.set_step(step);
    metric.set_loss(1.0 / step);
    server.metrics.push_back(metric);
  }
  const Outcome run = Sftctl(server, {"metrics", "job-a", "--json"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  std::istringstream lines(run.out);
  std::string line;
  int count = 0;
  while (std::getline(lines, line)) {
    const auto json = ParseJson(line);
    EXPECT_EQ(json["step"], ++count);
    EXPECT_EQ(json["loss"].get<double>(), 1.0 / count);
    for (const char* key : {"lr", "grad_norm", "tokens", "tokens_per_second", "gpu_memory_bytes"}) {
      EXPECT_TRUE(json.contains(key)) << key;
    }
  }
  EXPECT_EQ(count, 3);
}

// An answer of the feed with one event.
v1::ListClusterEventsResponse Fed(int64_t sequence, const std::string& subject,
                                  const std::string& message, int64_t job_sequence = 0) {
  v1::ListClusterEventsResponse response;
  response.set_last_sequence(sequence);
  v1::ClusterEvent& event = *response.add_events();
  event.set_sequence(sequence);
  event.set_subject(subject);
  event.set_type("state");
  event.set_message(message);
  event.set_job_sequence(job_sequence);
  return response;
}

TEST(EventsTest, OfAllJobsAndNodesArePrintedPageByPage) {
  FakeServer server;
  server.feed = {Fed(7, "projects/p/jobs/job-a", "PENDING -> RUNNING", 3),
                 Fed(9, "nodes/n1", "back\x1b[2J")};
  Outcome run = Sftctl(server, {"events", "--all", "--json", "--after", "5"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(server.feed_after, (std::vector<int64_t>{5, 7}));
  std::istringstream lines(run.out);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(ParseJson(line)["sequence"], 7);
  EXPECT_EQ(ParseJson(line)["job"], "job-a");
  EXPECT_EQ(ParseJson(line)["subject"], "projects/p/jobs/job-a");
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_TRUE(ParseJson(line)["job"].is_null());
  FakeServer people;
  people.feed = server.feed;
  run = Sftctl(people, {"events", "--all"});
  EXPECT_THAT(run.out, HasSubstr("job-a             state       PENDING -> RUNNING\n"));
  EXPECT_THAT(run.out, HasSubstr("n1                state       back\\x1b[2J\n"));
}

TEST(EventsTest, AFollowedFeedGoesOnBehindABreakAndTellsOfGaps) {
  FakeServer server;
  server.feed = {Fed(7, "nodes/n1", "up"), Fed(90, "nodes/n1", "down")};
  server.feed[1].mutable_gap()->set_first(8);
  server.feed[1].mutable_gap()->set_last(80);
  server.feed_status = {grpc::StatusCode::PERMISSION_DENIED, "the role is gone"};
  const Outcome run = Sftctl(server, {"events", "--all", "--follow", "--json"});
  EXPECT_EQ(run.code, kRefused);
  EXPECT_EQ(server.feed_after, (std::vector<int64_t>{-1, 7, 90})) << "from now on, then behind";
  EXPECT_THAT(run.out, HasSubstr("{\"gap\":{\"first\":8,\"last\":80}}\n"));
  EXPECT_THAT(run.err, HasSubstr("events 8 to 80 are no longer kept\n"));
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 3);
}

TEST(NodesTest, TheUseOfGpusOverTimeIsATableOrLines) {
  FakeServer server;
  EXPECT_THAT(Sftctl(server, {"nodes", "n1", "--history", "2h"}).err,
              HasSubstr("n1 has reported no use of GPUs in that time\n"));
  EXPECT_EQ(server.histories.back().node(), "n1");
  EXPECT_EQ(server.histories.back().since_seconds(), 7200);
  EXPECT_EQ(Sftctl(server, {"nodes", "--history", "2h"}).code, kUsage);
  EXPECT_EQ(Sftctl(server, {"nodes", "n1", "--history", "long"}).code, kUsage);
  v1::GpuHistory& gpu = *server.history.add_gpus();
  gpu.set_slot(3);
  v1::GpuUse& use = *gpu.add_points();
  use.mutable_time()->set_seconds(60);
  use.set_memory_used_bytes(70'000'000'000);
  use.set_utilization_percent(98.4F);
  use.set_power_watts(650);
  const Outcome run = Sftctl(server, {"nodes", "n1", "--history", "2h"});
  EXPECT_THAT(run.out, HasSubstr("3    1970-01-01T00:01:00.000Z  70.0 GB  98 %  650 W  -"));
  const auto json = ParseJson(Sftctl(server, {"nodes", "n1", "--history", "2h", "--json"}).out);
  EXPECT_EQ(json["slot"], 3);
  EXPECT_EQ(json["power_watts"], 650);
  EXPECT_EQ(json["temperature_celsius"], 0);
}

TEST(EventsTest, NeedAJobOrAll) {
  FakeServer server;
  EXPECT_EQ(Sftctl(server, {"events"}).code, kUsage);
  EXPECT_EQ(Sftctl(server, {"events", "job-a", "--all"}).code, kUsage);
  EXPECT_EQ(Sftctl(server, {"events", "job-a", "--follow"}).code, kUsage);
}

TEST(StatusTest, AWaitingJobSaysItsPlaceAndWhatWouldStartItSooner) {
  FakeServer server;
  server.jobs["job-a"] = MakeJob("job-a", v1::Job::PENDING);
  EXPECT_EQ(Sftctl(server, {"status", "job-a"}).code, kSucceeded) << "an older server";
  EXPECT_TRUE(ParseJson(Sftctl(server, {"status", "job-a", "--json"}).out)["wait"].is_null());
  v1::WaitExplanation& wait = server.wait.emplace();
  wait.set_reason("waiting in line");
  wait.mutable_outlook()->set_place(4);
  wait.mutable_outlook()->mutable_start_time()->set_seconds(3600);
  wait.set_line(9);
  wait.set_ahead_own(1);
  wait.set_ahead_others(2);
  wait.set_ahead_gpu_hours(12.5);
  wait.set_ahead_unknown(1);
  wait.set_past_starts(200);
  wait.set_past_within_20(141);
  wait.set_past_within_50(180);
  v1::WhatIf& now = *wait.add_what_ifs();
  now.set_change("on 4 x A100");
  now.set_now(true);
  now.set_command("sftctl submit job.toml --set compute.gpu_type=A100 && sftctl cancel job-a");
  v1::WhatIf& later = *wait.add_what_ifs();
  later.set_change("with priority high");
  later.mutable_start_time()->set_seconds(1800);
  later.set_command("sftctl submit job.toml --set scheduling.priority=high");
  const Outcome run = Sftctl(server, {"status", "job-a"});
  EXPECT_THAT(run.out,
              HasSubstr("line       place 4 of 9; ahead of it 1 job of its project and 2 of "
                        "other projects, 12.5 GPU-hours (1 of unknown run time, counted "
                        "with an hour)\n"));
  EXPECT_THAT(run.out,
              HasSubstr("estimates  of the last 200 starts 71 % came within a fifth of the "
                        "wait that was expected, 90 % within a half\n"));
  EXPECT_THAT(run.out,
              HasSubstr("sooner     on 4 x A100: now\n"
                        "             sftctl submit job.toml --set compute.gpu_type=A100 && sftctl "
                        "cancel job-a\n"
                        "           with priority high: at 1970-01-01T00:30:00.000Z\n"));
  const auto json = ParseJson(Sftctl(server, {"status", "job-a", "--json"}).out)["wait"];
  EXPECT_EQ(json["line"], 9);
  EXPECT_EQ(json["outlook"]["place"], 4);
  EXPECT_EQ(json["what_ifs"].size(), 2u);
  EXPECT_EQ(json["what_ifs"][0]["now"], true);
  EXPECT_EQ(json["what_ifs"][1]["start_time"], "1970-01-01T00:30:00.000Z");
  server.jobs["job-a"].set_state(v1::Job::RUNNING);
  EXPECT_THAT(Sftctl(server, {"status", "job-a"}).out, ::testing::Not(HasSubstr("sooner")));
}

TEST(EventsTest, ReadsEveryPageInOrder) {
  FakeServer server;
  for (int i = 0; i < 5; ++i) {
    v1::JobEvent event;
    event.set_sequence(i);
    event.set_type("state");
    event.set_message("event " + std::to_string(i));
    server.events.push_back(event);
  }
  const Outcome run = Sftctl(server, {"events", "job-a", "--json"});
  std::istringstream lines(run.out);
  std::string line;
  int next = 0;
  while (std::getline(lines, line)) EXPECT_EQ(ParseJson(line)["sequence"], next++);
  EXPECT_EQ(next, 5);
}

TEST(EventsTest, PeopleReadWhatRanksWroteInWords) {
  FakeServer server;
  const std::pair<const char*, const char*> notes[] = {
      {"prepared",
       R"({"event":"prepared","rows":152,"used":150,"skipped":2,"tokens":8123,"loss_tokens":400})"},
      {"prepared",
       R"({"event":"prepared","rows":9,"used":6,"skipped":3,"skipped_tokens":130,)"
       R"("skipped_by":[{"reason":"no answer","rows":1},{"reason":"too long","rows":2},7],)"
       R"("tokens":90,"loss_tokens":40})"},
      {"prepared",
       R"({"event":"prepared","rows":9,"used":9,"skipped":0,"tokens":90,"loss_tokens":40,)"
       R"("repeated":3,"forms":"9 text","cut":2,"cut_tokens":1500,"validation":4,)"
       R"("from_cache":true})"},
      {"ready", R"({"event":"ready","rank":1,"world":2,"device":"cpu","total_steps":3,)"
                R"("trainable_parameters":1000,"total_parameters":5000,"seconds":1.5})"},
      {"consistency",
       R"({"event":"consistency","rank":0,"weights_sha256":"0123456789abcdef","consistent":true})"},
      {"consistency",
       R"({"event":"consistency","rank":1,"weights_sha256":"0123456789abcdef","consistent":true,)"
       R"("packing_difference":2e-7,"delivered_difference":0,"packing_seconds":0.2,)"
       R"("delivered_seconds":0.5})"},
      {"checkpoint", R"({"event":"checkpoint","step":40,"path":"/data/step-40","bytes":12345678,)"
                     R"("reason":"steps","seconds":0.84,"stall_seconds":0.1,"has_metric":true,)"
                     R"("metric":1.25,"best":true})"},
      {"resumed", R"({"event":"resumed","step":40,"path":"/x","changes":["engine 1.2 -> 1.3"]})"},
      {"plan", R"({"event":"plan","rank":0,"description":"LoRA","reserved_bytes":)"
               R"({"predicted":2000000000,"measured":1900000000}})"},
      {"later", R"({"event":"later","time":1,"what":"new","step_count":2})"},
      {"\x1b]0;evil\x07very_new", "a sentence"},
      {"state", "PENDING -> PREPARING"}};
  for (const auto& [type, message] : notes) {
    v1::JobEvent event;
    event.set_type(type);
    event.set_message(message);
    server.events.push_back(event);
  }
  const std::string out = Sftctl(server, {"events", "job-a"}).out;
  EXPECT_THAT(out, HasSubstr("150 of 152 rows, 2 left out; 8.1k tokens, 400 of them with loss"));
  EXPECT_THAT(out, HasSubstr("6 of 9 rows, 3 left out (1 no answer; 2 too long, of 130 tokens); "));
  EXPECT_THAT(out, HasSubstr("9 of 9 rows (9 text), 0 left out, beside 3 repeats; 90 tokens, 40 of "
                             "them with loss; 2 rows cut or split, 1.5k tokens of them left out; 4 "
                             "rows for validation; prepared before"));
  EXPECT_THAT(out, HasSubstr("rank 1 of 2 on cpu after 1.5 s: 3 steps, 1.0k of 5.0k parameters"));
  EXPECT_THAT(out, HasSubstr("rank 0: weights agree (0123456789ab)"));
  EXPECT_THAT(out, HasSubstr("rank 1: weights agree (0123456789ab); logits of the written files "
                             "differ by 0 of the largest, of a packed document by 2e-07; checked "
                             "in 0.70 s"));
  EXPECT_THAT(out, HasSubstr("step 40 saved on its node: 12.3 MB in 0.8 s, of which training stood "
                             "still for 0.1 s (steps); metric 1.2500; the best so far"));
  EXPECT_THAT(out, HasSubstr("goes on after step 40; other than then: engine 1.2 -> 1.3"));
  EXPECT_THAT(out,
              HasSubstr("rank 0: LoRA; memory at the peak: 2.00 GB planned, 1.90 GB measured"));
  EXPECT_THAT(out, HasSubstr("what new, step count 2"));
  EXPECT_THAT(out, HasSubstr("very new"));
  EXPECT_THAT(out, ::testing::Not(HasSubstr("\x1b"))) << "of a node, for a terminal";
  EXPECT_THAT(out, HasSubstr("PENDING -> PREPARING"));
  EXPECT_THAT(out, ::testing::Not(HasSubstr("{")));
}

TEST(ClusterTest, NodesVariantsAndModelsAreListed) {
  FakeServer server;
  v1::Node node;
  node.set_name("nodes/n1");
  node.set_state(v1::Node::UP);
  node.set_simulated(true);
  for (int i = 0; i < 8; ++i) {
    v1::Slot* slot = node.add_slots();
    slot->set_gpu_type("H100");
    slot->set_healthy(true);
    if (i < 2) slot->set_job("projects/p/jobs/job-a");
  }
  server.nodes = {node};
  v1::Variant variant;
  variant.set_name("H100-4x");
  server.variants = {variant};
  v1::NodeModel model;
  model.set_node("nodes/n1");
  model.mutable_model()->set_id("tiny");
  model.mutable_model()->set_problem("tokenizer.json is missing");
  server.models = {model};
  const Outcome nodes = Sftctl(server, {"nodes"});
  EXPECT_THAT(nodes.out, HasSubstr("8 x H100 (simulated), 6 free"));
  EXPECT_THAT(nodes.out, HasSubstr("job-a"));
  EXPECT_EQ(ParseJson(Sftctl(server, {"nodes", "--json"}).out)[0]["simulated"], true);
  EXPECT_THAT(Sftctl(server, {"variants"}).out, HasSubstr("H100-4x"));
  // As an older server answers: without family, parameters and needs.
  EXPECT_THAT(Sftctl(server, {"models"}).out, HasSubstr("tokenizer.json is missing"));
}

v1::ModelNeed NeedOn(const std::string& type, const std::string& method, bool smallest, int gpus,
                     int64_t gigabytes) {
  v1::ModelNeed need;
  need.set_gpu_type(type);
  need.set_gpu_memory_bytes(80'000'000'000);
  need.set_method(method);
  need.set_smallest(smallest);
  need.set_sequence_length(smallest ? 512 : 2048);
  need.set_gpus(gpus);
  need.set_memory_bytes(gigabytes * 1'000'000'000);
  return need;
}

TEST(ClusterTest, AModelIsToldWithWhatItNeeds) {
  FakeServer server;
  v1::NodeModel model;
  model.set_node("nodes/n1");
  model.mutable_model()->set_id("Qwen/Qwen3-8B");
  model.mutable_model()->set_path("/models/Qwen/Qwen3-8B");
  model.set_family("qwen3");
  model.set_parameters(8'190'735'360);
  model.set_stored("bf16");
  *model.add_needs() = NeedOn("H100", "QLoRA", true, 1, 9);
  *model.add_needs() = NeedOn("H100", "LoRA", false, 1, 50);
  *model.add_needs() = NeedOn("H100", "full", false, 4, 70);
  model.mutable_needs(2)->set_tokens_per_second(12'300);
  *model.add_needs() = NeedOn("L4", "full", false, 0, 30);
  model.mutable_needs(3)->set_tokens_per_second(900);
  model.mutable_needs(3)->set_speed_from_peaks(true);
  v1::NodeModel other = model;
  other.mutable_model()->set_id("other");
  other.mutable_model()->set_path("/models/other");
  other.set_parameters(30'532'122'624);
  other.set_active_parameters(3'353'032'704);
  model.set_active_parameters(model.parameters());
  server.models = {model, other};

  const std::string list = Sftctl(server, {"models"}).out;
  EXPECT_THAT(list, HasSubstr("qwen3   8.19B" + std::string(17, ' ') + "bf16"));
  EXPECT_THAT(list, HasSubstr("qwen3   30.53B, 3.35B active  bf16"));
  EXPECT_THAT(list, HasSubstr("QLoRA 9.00 GB on 1 x H100 "));
  EXPECT_THAT(list, HasSubstr("LoRA 50.0 GB on 1 x H100; full 70.0 GB on 4 x H100 "));
  EXPECT_THAT(list, ::testing::Not(HasSubstr("L4"))) << "one type in the list";

  const std::string one = Sftctl(server, {"models", "Qwen/Qwen3-8B"}).out;
  EXPECT_THAT(one, HasSubstr("smallest  QLoRA   512 tokens   1 x H100"));
  EXPECT_THAT(one, HasSubstr("12.3k"));
  EXPECT_THAT(one, HasSubstr("does not fit 64 x L4"));
  EXPECT_THAT(one, HasSubstr("900 (from peaks)"));
  EXPECT_THAT(one, ::testing::Not(HasSubstr("/models/other")));
  EXPECT_THAT(Sftctl(server, {"models", "/models/other"}).out, HasSubstr("other"));
  EXPECT_EQ(Sftctl(server, {"models", "nope"}).code, kNotFound);

  const auto json = ParseJson(Sftctl(server, {"models", "--json"}).out);
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json[0]["family"], "qwen3");
  EXPECT_EQ(json[0]["parameters"], 8'190'735'360);
  EXPECT_EQ(json[1]["active_parameters"], 3'353'032'704);
  EXPECT_EQ(json[0]["stored"], "bf16");
  ASSERT_EQ(json[0]["needs"].size(), 4U);
  EXPECT_EQ(json[0]["needs"][2]["method"], "full");
  EXPECT_EQ(json[0]["needs"][2]["for"], "fastest");
  EXPECT_EQ(json[0]["needs"][2]["gpus"], 4);
  EXPECT_EQ(json[0]["needs"][0]["for"], "smallest");
}

TEST(ClusterTest, AFleetWithoutGpusIsSaidToBeOne) {
  FakeServer server;
  v1::NodeModel model;
  model.mutable_model()->set_id("tiny");
  *model.add_needs() = NeedOn("H100", "QLoRA", true, 1, 9);
  model.mutable_needs(0)->set_assumed(true);
  server.models = {model};
  EXPECT_THAT(Sftctl(server, {"models"}).err, HasSubstr("told for an H100"));
  EXPECT_THAT(Sftctl(server, {"models", "tiny"}).out, HasSubstr("1 x H100 (an example)"));
}

TEST(DataCheckTest, SaysWhatAFileHoldsWithoutAServer) {
  FakeServer server;
  server.info.set_protocol(kProtocol + 9);
  server.info.set_min_protocol(kProtocol + 9);
  const std::string good = WriteTestFile("good.csv", "question,answer\na,b\nc,d\n");
  const Outcome run = Sftctl(server, {"data", "check", good});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.out, HasSubstr("rows        2: 2 question + answer"));
  EXPECT_THAT(run.err, HasSubstr("a model that a node has"));
  EXPECT_EQ(ParseJson(Sftctl(server, {"data", "check", good, "--json"}).out).at("rows"), 2);
  const std::string pairs =
      WriteTestFile("pairs.jsonl", "{\"text\":\"a\"}\n{\"chosen\":\"a\",\"rejected\":\"b\"}\n");
  const Outcome odd = Sftctl(server, {"data", "check", pairs});
  EXPECT_EQ(odd.code, kUsage);
  EXPECT_THAT(odd.out, HasSubstr("odd rows    1, the first at line 2: a preference pair"));
  const Outcome broken = Sftctl(server, {"data", "check", WriteTestFile("bad.json", "[{}")});
  EXPECT_EQ(broken.code, kUsage);
  EXPECT_THAT(broken.err, HasSubstr("bad.json: line 1: the file ends inside its JSON"));
  EXPECT_EQ(Sftctl(server, {"data", "check", "/nowhere/rows"}).code, kUsage);
}

TEST(DataCheckTest, AJobFileNamesTheRowsAndHowTheyAreRead) {
  FakeServer server;
  const std::string folder = TestFolder();
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder + "/" + name) << text;
    return folder + "/" + name;
  };
  write("rows.csv", "ask,reply\na,b\nc,d\n");
  const std::string job = write("check.toml",
                                "[job]\nmodel = \"m\"\ndata = \"rows.csv\"\n[data]\ncolumns = "
                                "[\"prompt=ask\", \"completion=reply\"]\n");
  const Outcome run = Sftctl(server, {"data", "check", "--job", job});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.out, HasSubstr("rows        2: 2 prompt + completion"));
  EXPECT_THAT(run.err, HasSubstr("the tokenizer of m is in no folder here, nor from a node: "));
  const std::string other = write("other.csv", "ask,reply\na,b\n");
  EXPECT_THAT(Sftctl(server, {"data", "check", other, "--job", job}).out,
              HasSubstr("rows        1"));
  EXPECT_EQ(Sftctl(server, {"data", "check"}).code, kUsage);
  const std::pair<const char*, const char*> bad[] = {
      {"[job]\ndata = \"node:/a.jsonl\"\n", "is on the nodes"},
      {"[job]\nmodel = \"m\"\n", "names no job.data"},
      {"[data]\ntrain = [\"a.jsonl\", \"b.jsonl\"]\n", "data.train has several files"},
      {"[job]\ndata = \"a.jsonl\"\n[data]\ndedup = \"near\"\n", "check.toml:4: data.dedup: "}};
  for (const auto& [text, message] : bad) {
    write("check.toml", text);
    const Outcome refused = Sftctl(server, {"data", "check", "--job", job});
    EXPECT_EQ(refused.code, kUsage) << text;
    EXPECT_THAT(refused.err, HasSubstr(message));
  }
}

TEST(DataCheckTest, ATokenizerComesFromANodeAndOfItNothingElse) {
  FakeServer server;
  const std::string rows = WriteTestFile("rows.csv", "question,answer\na,b\n");
  const auto check = [&] { return Sftctl(server, {"data", "check", rows, "--model", "org/m"}); };
  Outcome run = check();
  EXPECT_EQ(run.code, kUsage);
  EXPECT_THAT(run.err, HasSubstr("the tokenizer of org/m is in no folder here, nor from a node: "
                                 "no node has the model org/m"));
  server.tokenizer = {{"../escape.json", "{}"}};
  run = check();
  EXPECT_EQ(run.code, kUsage);
  EXPECT_THAT(run.err, HasSubstr("sends what is no tokenizer: ../escape.json"));
}

TEST(ExplainTest, NeedsNoServerAndSuggests) {
  FakeServer server;
  server.info.set_protocol(kProtocol + 9);
  server.info.set_min_protocol(kProtocol + 9);
  EXPECT_THAT(Sftctl(server, {"explain", "lora_r"}).out, HasSubstr("Rank of the adapters"));
  EXPECT_THAT(Sftctl(server, {"explain"}).out, HasSubstr("hyperparameters.learning_rate"));
  const Outcome unknown = Sftctl(server, {"explain", "lora.rr"});
  EXPECT_EQ(unknown.code, kNotFound);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean lora.r?"));
  const Outcome short_word = Sftctl(server, {"explain", "lr"});
  EXPECT_EQ(short_word.code, kNotFound);
  EXPECT_THAT(short_word.err, HasSubstr("did you mean hyperparameters.learning_rate, "));
  const Outcome strange = Sftctl(server, {"explain", "nope"});
  EXPECT_EQ(strange.code, kNotFound);
  EXPECT_THAT(strange.err, ::testing::Not(HasSubstr("did you mean")));
}

TEST(CompletionTest, KnowsEveryCommandAndFlag) {
  FakeServer server;
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Outcome run = Sftctl(server, {"completion", shell});
    EXPECT_EQ(run.code, kSucceeded);
    for (const char* word : {"submit", "download", "dry-run", "request-id"}) {
      EXPECT_THAT(run.out, HasSubstr(word)) << shell;
    }
  }
  EXPECT_EQ(Sftctl(server, {"completion", "tcsh"}).code, kUsage);
}

TEST(LoginTest, ABeginningOfAFingerprintIsNone) {
  FakeServer server;
  const Outcome run = Sftctl(server, {"login", "127.0.0.1:1", "--fingerprint", "3f8a"});
  EXPECT_EQ(run.code, kUsage);
  EXPECT_THAT(run.err, HasSubstr("--fingerprint needs all 64 digits"));
}

TEST(VersionTest, AServerThatDoesNotFitIsRefusedWithBothVersions) {
  FakeServer server;
  server.info.set_version("9.9.9");
  server.info.set_protocol(kProtocol + 2);
  server.info.set_min_protocol(kProtocol + 1);
  const Outcome run = Sftctl(server, {"list"});
  EXPECT_EQ(run.code, kRefused);
  EXPECT_THAT(run.err, HasSubstr("9.9.9"));
  EXPECT_THAT(run.err, HasSubstr(kVersion));
  EXPECT_THAT(run.err, HasSubstr("upgrade this program"));
}

TEST(WebTest, PrintsTheAddressWithTheCodeBehindTheFragment) {
  FakeServer server;
  server.web_code.set_url("http://127.0.0.1:7071");
  EXPECT_EQ(Sftctl(server, {"web"}).out, "http://127.0.0.1:7071/\n");
  server.web_code.set_url("https://sft.example.org");
  server.web_code.set_code("abc");
  server.web_code.mutable_expire_time()->set_seconds(1'700'000'000);
  const Outcome run = Sftctl(server, {"web", "--no-open"});
  EXPECT_EQ(run.code, kSucceeded);
  EXPECT_EQ(run.out, "https://sft.example.org/#code=abc\n");
  EXPECT_THAT(run.err, HasSubstr("once, for a minute"));
  const nlohmann::json told = ParseJson(Sftctl(server, {"web", "--json"}).out);
  EXPECT_EQ(told["url"], "https://sft.example.org/#code=abc");
  EXPECT_EQ(told["expire_time"], "2023-11-14T22:13:20.000Z");
  server.web_status = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "the page is off");
  const Outcome off = Sftctl(server, {"web"});
  EXPECT_NE(off.code, kSucceeded);
  EXPECT_THAT(off.err, HasSubstr("the page is off"));
}

TEST(UnreachableTest, NamesTheAddressAndWhatToDo) {
  std::ostringstream out, err;
  const Console console{out, err};
  FakeClock clock;
  const Connect connect = [&](const std::string&) {
    return std::make_unique<Connection>("127.0.0.1:1", rpc::Security(), console, clock);
  };
  const char* argv[] = {"sftctl", "list"};
  EXPECT_EQ(RunApp(2, argv, console, connect), kUnreachable);
  EXPECT_THAT(err.str(), HasSubstr("cannot reach sft-server at 127.0.0.1:1 (address from "));
  EXPECT_THAT(err.str(), HasSubstr("start it with `sft-server --dev`"));
  EXPECT_THAT(err.str(), HasSubstr("--server HOST:PORT or SFT_SERVER"));
}

}  // namespace
}  // namespace sft::client
