#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "client/base/exit_codes.h"
#include "common/base/json.h"
#include "common/io/sha256.h"
#include "common/rpc/status.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string Sha256(const std::string& bytes) {
  io::Sha256 hash;
  hash.Update(bytes);
  return hash.FinishHex();
}

class SubmitTest : public ::testing::Test {
 protected:
  SubmitTest() : folder_(TestFolder()) { Write("job.toml", "[job]\n"); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  // The server's answer names this file as training data.
  void Need(const std::string& path, bool from_override = false) {
    v1::NeededFile* needed = server_.resolution.add_needed_files();
    needed->set_key("job.data");
    needed->set_path(path);
    needed->set_from_override(from_override);
  }

  const std::string folder_;
  FakeServer server_;
};

TEST_F(SubmitTest, PrintsTheJobAndNothingElseOnStdout) {
  const Outcome run = Sftctl(server_, {"submit", Path("job.toml")});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, "job-new\n");
  EXPECT_THAT(run.err, HasSubstr("sftctl logs job-new --follow"));
  EXPECT_THAT(run.err, HasSubstr("waits for H100-4x"));
}

TEST_F(SubmitTest, JsonHasJobAndState) {
  const Outcome run = Sftctl(server_, {"submit", "--config", Path("job.toml"), "--json"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  const auto json = ParseJson(run.out);
  EXPECT_EQ(json["job"], "job-new");
  EXPECT_EQ(json["state"], "PENDING");
}

TEST_F(SubmitTest, SendsTheTextAndTheOverridesInOrder) {
  ASSERT_EQ(setenv("TRAIN_BATCH_SIZE", "2", 1), 0);
  const Outcome run = Sftctl(server_, {"submit", Path("job.toml"), "--type", "sft", "--dataset",
                                       "d.jsonl", "--val", "v.jsonl", "--examples", "8", "--model",
                                       "m", "--set", "lora.r=4", "--set", "job.name=a=b"});
  ASSERT_EQ(unsetenv("TRAIN_BATCH_SIZE"), 0);
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  ASSERT_EQ(server_.submitted.size(), 1u);
  const v1::SubmitJobRequest& request = server_.submitted[0];
  EXPECT_EQ(request.source_text(), "[job]\n");
  EXPECT_EQ(request.file_name(), "job.toml");
  std::string text;
  for (const v1::Override& o : request.overrides()) {
    text += std::to_string(o.kind()) + " " + o.key() + "=" + o.value() + " " + o.origin() + "\n";
  }
  EXPECT_EQ(text,
            "1 TRAIN_BATCH_SIZE=2 TRAIN_BATCH_SIZE\n"
            "2 job.kind=sft --type\n"
            "2 job.data=d.jsonl --dataset\n"
            "2 data.val=v.jsonl --val\n"
            "2 job.model=m --model\n"
            "2 data.max_examples=8 --examples\n"
            "3 lora.r=4 --set\n"
            "3 job.name=a=b --set\n");
}

TEST_F(SubmitTest, UploadsTheRowsBesideTheJobFileOnce) {
  Write("rows.jsonl", "{\"text\":\"a\"}\n");
  Need("rows.jsonl");
  const Outcome first = Sftctl(server_, {"submit", Path("job.toml")});
  ASSERT_EQ(first.code, kSucceeded) << first.err;
  EXPECT_THAT(first.err, HasSubstr("uploading"));
  const std::string hash = Sha256("{\"text\":\"a\"}\n");
  EXPECT_EQ(server_.blobs[hash], "{\"text\":\"a\"}\n");
  ASSERT_EQ(server_.submitted[0].files_size(), 1);
  EXPECT_EQ(server_.submitted[0].files(0).key(), "job.data");
  EXPECT_EQ(server_.submitted[0].files(0).sha256(), hash);
  EXPECT_EQ(server_.submitted[0].files(0).size(), 13);
  const Outcome second = Sftctl(server_, {"submit", Path("job.toml")});
  ASSERT_EQ(second.code, kSucceeded) << second.err;
  EXPECT_THAT(second.err, Not(HasSubstr("uploading")));
  EXPECT_EQ(server_.upload_offsets.size(), 1u);
}

TEST_F(SubmitTest, ABrokenUploadGoesOnWhereItStopped) {
  const std::string rows = "{\"text\":\"" + std::string(3 << 20, 'x') + "\"}\n";
  Write("rows.jsonl", rows);
  Need("rows.jsonl");
  server_.cut_upload_after = (1 << 20) + 17;
  const Outcome run = Sftctl(server_, {"submit", Path("job.toml")});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(server_.upload_offsets, ::testing::ElementsAre(0, (1 << 20) + 17));
  EXPECT_EQ(server_.blobs[Sha256(rows)], rows);
}

TEST_F(SubmitTest, AMissingDataSetIsAProblemOfTheJob) {
  Need("nowhere.jsonl");
  const Outcome run = Sftctl(server_, {"submit", Path("job.toml")});
  EXPECT_EQ(run.code, kUsage);
  EXPECT_THAT(run.err, HasSubstr("job.data: "));
  EXPECT_THAT(run.err, HasSubstr("nowhere.jsonl"));
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(server_.submitted, IsEmpty());
}

TEST_F(SubmitTest, APathFromAnOverrideCountsFromTheWorkingDirectory) {
  Write("rows.jsonl", "{\"text\":\"a\"}\n");
  Need(std::filesystem::relative(Path("rows.jsonl")).string(), /*from_override=*/true);
  EXPECT_EQ(Sftctl(server_, {"submit", Path("job.toml")}).code, kSucceeded);
}

TEST_F(SubmitTest, AllProblemsAreNamedWithFileAndLine) {
  for (int line : {3, 9}) {
    v1::Problem* problem = server_.resolution.add_problems();
    problem->set_key("lora.r");
    problem->set_line(line);
    problem->set_message("must be more");
  }
  const Outcome run = Sftctl(server_, {"submit", Path("job.toml")});
  EXPECT_EQ(run.code, kUsage);
  EXPECT_THAT(run.err, HasSubstr("job.toml:3: lora.r: must be more\n"));
  EXPECT_THAT(run.err, HasSubstr("job.toml:9: lora.r: must be more\n"));
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(server_.submitted, IsEmpty());
}

TEST_F(SubmitTest, WarningsAreShownAndTheJobGoesOn) {
  v1::Problem* warning = server_.resolution.add_warnings();
  warning->set_key("hyperparameters.global_batch");
  warning->set_message("128 and 64");
  const Outcome run = Sftctl(server_, {"submit", Path("job.toml")});
  EXPECT_EQ(run.code, kSucceeded);
  EXPECT_THAT(run.err, HasSubstr("warning: "));
  EXPECT_THAT(run.err, HasSubstr("128 and 64"));
}

TEST_F(SubmitTest, ADryRunShowsThePlanAndUploadsNothing) {
  Write("rows.jsonl", "{\"text\":\"a\"}\n");
  Need("rows.jsonl");
  v1::ResolvedValue* value = server_.resolution.add_resolved();
  value->set_key("lora.r");
  value->set_value("16");
  value->set_origin("default");
  server_.resolution.set_resolved_json("{}");
  v1::JobPlan* plan = server_.resolution.mutable_plan();
  plan->set_variant("H100-4x");
  plan->set_nodes(1);
  plan->set_ranks(4);
  plan->set_placement("can start now");
  plan->set_batch("1 x 4 x 16 = 64");
  plan->set_trainable_parameters(1000);
  plan->set_total_parameters(100000);
  plan->set_active_parameters(40000);
  v1::MemoryItem* memory = plan->add_memory();
  memory->set_category("weights");
  memory->set_bytes(2'000'000'000);
  const Outcome run = Sftctl(server_, {"submit", Path("job.toml"), "--dry-run"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.out, HasSubstr("lora.r"));
  EXPECT_THAT(run.out, HasSubstr("H100-4x on 1 node: 4 ranks; can start now"));
  EXPECT_THAT(run.out, HasSubstr("1 x 4 x 16 = 64"));
  EXPECT_THAT(run.out, HasSubstr("1.0k trainable of 100.0k (1.000 %), 40.0k of them active"));
  EXPECT_THAT(run.out, HasSubstr("weights 2.00 GB"));
  EXPECT_THAT(server_.blobs, IsEmpty());
  EXPECT_THAT(server_.calls, ElementsAre("ResolveJob"));
  EXPECT_TRUE(server_.resolved[0].for_submit());

  const Outcome json = Sftctl(server_, {"submit", Path("job.toml"), "--dry-run", "--json"});
  const auto parsed = ParseJson(json.out);
  EXPECT_EQ(parsed["valid"], true);
  EXPECT_EQ(parsed["values"]["lora.r"]["origin"], "default");
  EXPECT_EQ(parsed["plan"]["ranks"], 4);
  EXPECT_EQ(parsed["plan"]["active_parameters"], 40000);
}

TEST_F(SubmitTest, ADryRunShowsTheLayoutWhyAndTheNextBest) {
  v1::JobPlan* plan = server_.resolution.mutable_plan();
  const auto add = [&](const char* keys, double speed, int64_t bytes) {
    v1::Layout* layout = plan->add_layouts();
    layout->set_keys(keys);
    layout->set_tokens_per_second(speed);
    layout->set_memory_bytes(bytes);
  };
  add("fsdp = true", 94'800, 78'900'000'000);
  add("fsdp = true, context_parallel_size = 2", 90'100, 70'000'000'000);
  plan->set_layout_reason("the fastest that fits");
  const Outcome run = Sftctl(server_, {"submit", Path("job.toml"), "--dry-run"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.out, HasSubstr("layout       fsdp = true: 94.8k tokens/s, 78.9 GB a rank; the "
                                 "fastest that fits\n"
                                 "next         fsdp = true, context_parallel_size = 2: 90.1k "
                                 "tokens/s, 70.0 GB a rank\n"));
  const Outcome json = Sftctl(server_, {"submit", Path("job.toml"), "--dry-run", "--json"});
  const auto parsed = ParseJson(json.out)["plan"];
  ASSERT_EQ(parsed["layouts"].size(), 2u);
  EXPECT_EQ(parsed["layouts"][1]["keys"], "fsdp = true, context_parallel_size = 2");
  EXPECT_EQ(parsed["layouts"][1]["tokens_per_second"], 90'100);
  EXPECT_EQ(parsed["layouts"][1]["memory_bytes_per_rank"], 70'000'000'000);
  EXPECT_EQ(parsed["layout_reason"], "the fastest that fits");
}

TEST_F(SubmitTest, ADryRunOfABadJobIsInvalidJsonToo) {
  server_.resolution.add_problems()->set_message("bad");
  const Outcome run = Sftctl(server_, {"submit", Path("job.toml"), "--dry-run", "--json"});
  EXPECT_EQ(run.code, kUsage);
  EXPECT_EQ(ParseJson(run.out)["valid"], false);
}

TEST_F(SubmitTest, TheRequestIdIsPassedOn) {
  Sftctl(server_, {"submit", Path("job.toml"), "--request-id", "night-1"});
  Sftctl(server_, {"submit", Path("job.toml")});
  Sftctl(server_, {"submit", Path("job.toml")});
  ASSERT_EQ(server_.submitted.size(), 3u);
  EXPECT_EQ(server_.submitted[0].request_id(), "night-1");
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(server_.resolved[i].request_id(), server_.submitted[i].request_id());
  }
  EXPECT_NE(server_.submitted[1].request_id(), server_.submitted[2].request_id());
}

TEST_F(SubmitTest, BadUsageEndsWithTwo) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"submit"},
                                             {"submit", Path("job.toml"), "--set", "novalue"},
                                             {"submit", Path("job.toml"), "--set", "=value"},
                                             {"submit", Path("job.toml"), "--examples", "0"},
                                             {"submit", Path("job.toml"), "--nonsense"},
                                             {"nonsense"},
                                             {}}) {
    const Outcome run = Sftctl(server_, arguments);
    EXPECT_EQ(run.code, kUsage) << ::testing::PrintToString(arguments);
    EXPECT_THAT(run.out, IsEmpty());
    EXPECT_THAT(run.err, ::testing::StartsWith("sftctl: "));
  }
  EXPECT_THAT(server_.submitted, IsEmpty());
}

TEST_F(SubmitTest, AMissingJobFileIsNamed) {
  const Outcome run = Sftctl(server_, {"submit", Path("none.toml")});
  EXPECT_NE(run.code, kSucceeded);
  EXPECT_THAT(run.err, HasSubstr("none.toml"));
}

TEST_F(SubmitTest, ARefusalHasItsOwnCode) {
  server_.submit_status = {grpc::StatusCode::PERMISSION_DENIED, "not below the allowed roots"};
  const Outcome run = Sftctl(server_, {"submit", Path("job.toml")});
  EXPECT_EQ(run.code, kRefused);
  EXPECT_THAT(run.err, HasSubstr("not below the allowed roots"));
}

TEST_F(SubmitTest, ADataSetThatAnotherCallUploadsIsWaitedForNotSentAgain) {
  Write("rows.jsonl", "{\"text\":\"a\"}\n");
  Need("rows.jsonl");
  server_.uploads_of_others = 40;  // far more tries than a lost connection would get
  const Outcome run = Sftctl(server_, {"submit", Path("job.toml")});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.err, HasSubstr("by another call already: waiting"));
  EXPECT_THAT(server_.upload_offsets, IsEmpty());
  ASSERT_EQ(server_.submitted.size(), 1u);
  EXPECT_FALSE(server_.submitted[0].validate_only());
}

TEST_F(SubmitTest, WhatIsNotUtf8IsNamed) {
  Write("job.toml", "[job]\nname = \"caf\xe9\"\n");
  const Outcome file = Sftctl(server_, {"submit", Path("job.toml")});
  EXPECT_EQ(file.code, kUsage);
  EXPECT_THAT(file.err, HasSubstr("job.toml:2: is not UTF-8"));
  Write("job.toml", "[job]\n");
  const std::string path = Path("job.toml");
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"submit", path, "--model", "m\xff"}, "--model is not UTF-8: m\\xff"},
      {{"submit", path, "--set", "job.name=\xff"}, "--set is not UTF-8"},
      {{"submit", path, "--dataset", "\xff.jsonl"}, "--dataset is not UTF-8"},
      {{"submit", path + "\xff"}, "argument 2 is not UTF-8"},
      {{"status", "\xff"}, "argument 2 is not UTF-8"}};
  for (const auto& [arguments, message] : cases) {
    const Outcome run = Sftctl(server_, arguments);
    EXPECT_EQ(run.code, kUsage) << message;
    EXPECT_THAT(run.err, HasSubstr(message));
  }
  ASSERT_EQ(setenv("TRAIN_BATCH_SIZE", "\xff", 1), 0);
  const Outcome variable = Sftctl(server_, {"submit", path});
  ASSERT_EQ(unsetenv("TRAIN_BATCH_SIZE"), 0);
  EXPECT_EQ(variable.code, kUsage);
  EXPECT_THAT(variable.err, HasSubstr("environment variable TRAIN_BATCH_SIZE is not UTF-8"));
  EXPECT_THAT(server_.submitted, IsEmpty());
}

TEST_F(SubmitTest, AFlagWithoutAValueIsRefused) {
  for (const char* flag : {"--model", "--dataset", "--val", "--name", "--type"}) {
    const Outcome run = Sftctl(server_, {"submit", Path("job.toml"), flag, ""});
    EXPECT_EQ(run.code, kUsage) << flag;
    EXPECT_THAT(run.err, HasSubstr(std::string(flag) + " is empty"));
  }
}

TEST_F(SubmitTest, ANumberThatIsNoneIsToldInPlainWords) {
  for (const char* bad : {"0", "-1", "x", "1.5", "99999999999999999999"}) {
    const Outcome run = Sftctl(server_, {"submit", Path("job.toml"), "--examples", bad});
    EXPECT_EQ(run.code, kUsage) << bad;
    EXPECT_THAT(run.err, HasSubstr("--examples: must be a whole number from 1 to 999999999"));
    EXPECT_LT(run.err.size(), 200u) << run.err;
  }
}

TEST_F(SubmitTest, AMissingFileIsToldWithItsLineAmongTheOtherProblems) {
  Need("nowhere.jsonl");
  server_.resolution.mutable_needed_files(0)->set_line(3);
  v1::Problem* problem = server_.resolution.add_problems();
  problem->set_key("lora.r");
  problem->set_line(9);
  problem->set_message("must be more");
  const Outcome run = Sftctl(server_, {"submit", Path("job.toml")});
  EXPECT_EQ(run.code, kUsage);
  EXPECT_THAT(run.err, HasSubstr("job.toml:3: job.data: "));
  EXPECT_THAT(run.err, HasSubstr("job.toml:9: lora.r: "));
  EXPECT_LT(run.err.find("job.toml:3"), run.err.find("job.toml:9"));
  EXPECT_THAT(run.err, HasSubstr("2 problems"));
}

TEST_F(SubmitTest, APipeIsRefusedWithoutWaitingForItsWriter) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  const Outcome file = Sftctl(server_, {"submit", Path("pipe")});
  EXPECT_EQ(file.code, kUsage);
  EXPECT_THAT(file.err, HasSubstr("is a pipe, not a regular file"));
  Need("pipe");
  const Outcome data = Sftctl(server_, {"submit", Path("job.toml")});
  EXPECT_EQ(data.code, kUsage);
  EXPECT_THAT(data.err, HasSubstr("job.data: " + Path("pipe") + " is a pipe"));
}

TEST_F(SubmitTest, RowsThatCannotBeUsedAreAProblemBeforeTheyAreSent) {
  Need("rows.jsonl");
  server_.resolution.mutable_needed_files(0)->set_line(3);
  const std::pair<const char*, const char*> cases[] = {
      {"not json\n", "line 1: not JSON: not json; a data set is JSON Lines, one object a line"},
      {"", "the data set is empty"},
      {"{\"text\":\"a\"}\n{\"x\":1}\n", "line 2: none of the row forms"},
      {"{\"x\":1}\n", "none of its 1 rows can be used"}};
  for (const auto& [rows, message] : cases) {
    Write("rows.jsonl", rows);
    for (const bool dry_run : {false, true}) {
      std::vector<std::string> words = {"submit", Path("job.toml"), "--json"};
      if (dry_run) words.emplace_back("--dry-run");
      const Outcome run = Sftctl(server_, words);
      EXPECT_EQ(run.code, kUsage) << rows;
      EXPECT_THAT(run.err, HasSubstr("job.toml:3: job.data: " + Path("rows.jsonl") + ": "));
      EXPECT_THAT(run.err, HasSubstr(message));
      EXPECT_EQ(ParseJson(run.out)["valid"], false) << run.out;
    }
  }
  EXPECT_THAT(server_.blobs, IsEmpty());
  EXPECT_THAT(server_.submitted, IsEmpty());
}

TEST_F(SubmitTest, RowsThatTheJobLeavesOutAreNoProblem) {
  Need("rows.jsonl");
  Write("rows.jsonl", "{\"text\":\"a\"}\n{\"x\":1}\n");
  v1::ResolvedValue* value = server_.resolution.add_resolved();
  value->set_key("data.on_bad_rows");
  value->set_value("skip");
  EXPECT_EQ(Sftctl(server_, {"submit", Path("job.toml"), "--dry-run"}).code, kSucceeded);
  value->set_key("data.max_examples");
  value->set_value("1");
  EXPECT_EQ(Sftctl(server_, {"submit", Path("job.toml"), "--dry-run"}).code, kSucceeded);
}

TEST_F(SubmitTest, TheTextIsResolvedOnceBeforeFilesAreSent) {
  Write("rows.jsonl", "{\"text\":\"a\"}\n");
  Need("rows.jsonl");
  EXPECT_EQ(Sftctl(server_, {"submit", Path("job.toml"), "--project", "alpha"}).code, kSucceeded);
  EXPECT_THAT(server_.calls,
              ElementsAre("ResolveJob", "StatBlob", "StatBlob", "UploadBlob", "SubmitJob"));
  EXPECT_TRUE(server_.resolved[0].for_submit());
  EXPECT_EQ(server_.resolved[0].project(), "alpha");
}

TEST_F(SubmitTest, AServerThatDoesNotKnowOfItIsAskedApartBeforeFilesAreSent) {
  server_.checks_for_submit = false;
  Write("rows.jsonl", "{\"text\":\"a\"}\n");
  Need("rows.jsonl");
  EXPECT_EQ(Sftctl(server_, {"submit", Path("job.toml"), "--dry-run"}).code, kSucceeded);
  EXPECT_THAT(server_.calls, ElementsAre("ResolveJob", "StatBlob", "SubmitJob"));
  EXPECT_TRUE(server_.submitted[0].validate_only());
  server_.calls.clear();
  EXPECT_EQ(Sftctl(server_, {"submit", Path("job.toml")}).code, kSucceeded);
  EXPECT_THAT(server_.calls, ElementsAre("ResolveJob", "StatBlob", "SubmitJob", "StatBlob",
                                         "UploadBlob", "SubmitJob"));
}

// What an earlier server finds only in a job that would be submitted has the form of all else.
TEST_F(SubmitTest, ARefusedSubmissionNamesFileAndLineAndSendsNothing) {
  server_.checks_for_submit = false;
  Write("rows.jsonl", "{\"text\":\"a\"}\n");
  Need("rows.jsonl");
  server_.submit_status = rpc::ToGrpc(rpc::BadRequest(
      "job.toml: 1 problem", {{"scheduling.priority", "line 7: project p may not use urgent"}}));
  for (const bool dry_run : {false, true}) {
    std::vector<std::string> words = {"submit", Path("job.toml"), "--json"};
    if (dry_run) words.emplace_back("--dry-run");
    const Outcome run = Sftctl(server_, words);
    EXPECT_EQ(run.code, kUsage);
    EXPECT_THAT(run.err,
                HasSubstr("job.toml:7: scheduling.priority: project p may not use urgent"));
    EXPECT_THAT(run.err, HasSubstr("sftctl: 1 problem in "));
    const auto json = ParseJson(run.out);
    EXPECT_EQ(json["valid"], false) << run.out;
    EXPECT_EQ(json["problems"][0]["line"], 7);
    EXPECT_EQ(json["problems"][0]["key"], "scheduling.priority");
  }
  EXPECT_THAT(server_.blobs, IsEmpty());
}

TEST_F(SubmitTest, ALimitWithoutAKeyIsAProblemInJsonToo) {
  server_.submit_status = {grpc::StatusCode::RESOURCE_EXHAUSTED, "project p may have 2 jobs"};
  server_.resolve_status = server_.submit_status;
  for (const bool checks_for_submit : {false, true}) {
    server_.checks_for_submit = checks_for_submit;
    const Outcome run = Sftctl(server_, {"submit", Path("job.toml"), "--dry-run", "--json"});
    EXPECT_EQ(run.code, kRefused);
    EXPECT_EQ(ParseJson(run.out)["problems"][0]["message"], "project p may have 2 jobs");
  }
}

TEST_F(SubmitTest, OfManyProblemsTheFirstTwentyAreShown) {
  for (int line = 1; line <= 23; ++line) {
    v1::Problem* problem = server_.resolution.add_problems();
    problem->set_line(line);
    problem->set_message("unknown key");
  }
  const Outcome run = Sftctl(server_, {"submit", Path("job.toml"), "--json"});
  EXPECT_THAT(run.err, HasSubstr("job.toml:20: unknown key\nand 3 more\nsftctl: 23 problems"));
  EXPECT_EQ(ParseJson(run.out)["problems"].size(), 23u);
}

TEST_F(SubmitTest, ADryRunOfASweepShowsItsJobs) {
  const std::vector<std::string> words = {
      "sweep", Path("job.toml"),           "--set",    "lora.r=8,16",
      "--set", "hyperparameters.seed=1,2", "--dry-run"};
  const Outcome text = Sftctl(server_, words);
  EXPECT_EQ(text.code, kSucceeded) << text.err;
  EXPECT_THAT(text.out, HasSubstr("JOB  lora.r  hyperparameters.seed"));
  EXPECT_THAT(text.out, HasSubstr("2    8       2"));
  EXPECT_THAT(text.err, HasSubstr("dry run: 4 jobs, every combination is valid"));
  std::vector<std::string> with_json = words;
  with_json.emplace_back("--json");
  const auto json = ParseJson(Sftctl(server_, with_json).out);
  EXPECT_EQ(json["valid"], true);
  ASSERT_EQ(json["jobs"].size(), 4u);
  EXPECT_EQ(json["jobs"][1]["hyperparameters.seed"], "2");
  EXPECT_EQ(json["jobs"][2]["lora.r"], "16");
}

}  // namespace
}  // namespace sft::client
