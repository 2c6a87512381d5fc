#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/base/exit_codes.h"
#include "common/io/sha256.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class GenerateTest : public ::testing::Test {
 protected:
  GenerateTest() {
    v1::Job trained = MakeJob("job-a", v1::Job::SUCCEEDED);
    trained.set_resolved_json(R"({"job":{"model":"org/tiny"},"compute":{"gpu_type":"H100"},
        "data":{"template_arguments":["reasoning_effort=high"]}})");
    server_.jobs["job-a"] = trained;
    server_.watches = {
        {{MakeJob("job-1", v1::Job::RUNNING), MakeJob("job-1", v1::Job::SUCCEEDED)}}};
    server_.artifact.set_name("artifacts/a");
    server_.artifact.set_kind("adapter");
    server_.artifact.add_files()->set_path("answers.jsonl");
    Answer(R"({"messages":[],"answer":"A \"shim\".","finish_reason":"stop"})");
  }
  void Answer(const std::string& line) { server_.artifact_files["answers.jsonl"] = line + "\n"; }
  // The prompts that the only submitted job was sent with.
  std::string Prompts() { return server_.blobs[server_.submitted.at(0).files(0).sha256()]; }

  FakeServer server_;
};

TEST_F(GenerateTest, WhatAJobTrainedAnswersAPromptByAJobOfItsOwn) {
  const Outcome run = Sftctl(server_, {"generate", "job-a", "--prompt", "What is a \"shim\"?",
                                       "--system", "Be brief.", "--temperature", "0.5"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, "A \"shim\".\n");
  ASSERT_EQ(server_.submitted.size(), 1u);
  const std::string& text = server_.submitted[0].source_text();
  EXPECT_THAT(text, HasSubstr("kind = \"generate\""));
  EXPECT_THAT(text, HasSubstr("model = \"org/tiny\""));
  EXPECT_THAT(text, HasSubstr("adapter = \"job-a\""));
  EXPECT_THAT(text, HasSubstr("gpu_type = \"H100\""));
  EXPECT_THAT(text, HasSubstr("temperature = 0.5"));
  EXPECT_EQ(Prompts(),
            "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
            "{\"role\":\"user\",\"content\":\"What is a \\\"shim\\\"?\"}]}\n");
}

TEST_F(GenerateTest, AFullModelAnswersFromItsFolder) {
  server_.artifact.set_kind("model");
  server_.artifact.set_node_path("/shared/job-a/model");
  const Outcome run = Sftctl(server_, {"generate", "job-a", "--prompt", "a"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(server_.submitted[0].source_text(), HasSubstr("model = \"/shared/job-a/model\""));
  EXPECT_THAT(server_.submitted[0].source_text(), HasSubstr("adapter = \"\""));
  EXPECT_THAT(server_.submitted[0].source_text(),
              HasSubstr("template_arguments = [\"reasoning_effort=high\"]\n[job]"));
}

TEST_F(GenerateTest, ABaseModelAnswersAndTextIsContinuedAsItIs) {
  const Outcome run =
      Sftctl(server_, {"generate", "--model", "org/tiny", "--raw", "--prompt", "Once", "--json"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.out, HasSubstr("\"finish_reason\": \"stop\""));
  EXPECT_THAT(server_.submitted[0].source_text(), Not(HasSubstr("gpu_type")));
  EXPECT_EQ(Prompts(), "{\"prompt\":\"Once\"}\n");
}

TEST_F(GenerateTest, AJobThatFailsSaysWhyAndAnAnswerWithAnErrorIsNoSuccess) {
  Answer(R"({"answer":"","finish_reason":"error","error":"logits are NaN"})");
  Outcome run = Sftctl(server_, {"generate", "job-a", "--prompt", "a"});
  EXPECT_EQ(run.code, kJobFailedUser);
  EXPECT_THAT(run.err, HasSubstr("logits are NaN"));
  server_.watches = {{{MakeFailed("job-1", v1::Verdict::INFRASTRUCTURE)}}};
  run = Sftctl(server_, {"generate", "job-a", "--prompt", "a"});
  EXPECT_EQ(run.code, kJobFailedInfra);
  EXPECT_THAT(run.err, HasSubstr("failed (infrastructure)"));
}

TEST_F(GenerateTest, WhoAnswersMustBeSaidOnce) {
  EXPECT_EQ(Sftctl(server_, {"generate", "--prompt", "a"}).code, kUsage);
  EXPECT_EQ(Sftctl(server_, {"generate", "job-a", "--model", "m", "--prompt", "a"}).code, kUsage);
  EXPECT_EQ(Sftctl(server_, {"generate", "job-a"}).code, kUsage);
  EXPECT_EQ(Sftctl(server_, {"generate", "job-a", "--prompt", "a", "--raw", "--system", "b"}).code,
            kUsage);
  EXPECT_TRUE(server_.submitted.empty());
}

TEST_F(GenerateTest, BeamsDrawNothingAndNumbersAreInTheirRange) {
  const auto code = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"generate", "job-a", "--prompt", "a"});
    return Sftctl(server_, flags).code;
  };
  EXPECT_EQ(code({"--num-beams", "4", "--temperature", "0.5"}), kUsage);
  EXPECT_EQ(code({"--num-beams", "-4"}), kUsage);
  EXPECT_EQ(code({"--num-beams", "0"}), kUsage);
  EXPECT_EQ(code({"--temperature", "-1"}), kUsage);
  EXPECT_EQ(code({"--temperature", "nan"}), kUsage);
  EXPECT_TRUE(server_.submitted.empty());
  EXPECT_EQ(code({"--num-beams", "4", "--temperature", "0"}), kSucceeded);
  EXPECT_THAT(server_.submitted.at(0).source_text(), HasSubstr("num_beams = 4"));
}

TEST_F(GenerateTest, AJobThatServesAnswersAtOnceAndDoesNotSearch) {
  v1::Job served = MakeJob("job-s", v1::Job::RUNNING);
  served.set_kind(v1::Job::SERVE);
  server_.jobs["job-s"] = served;
  server_.answers = {{{"One", " two"}}, {.error = "the prompt is too long"}};
  Outcome run = Sftctl(server_, {"generate", "job-s", "--prompt", "a"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, "One two\n");
  run = Sftctl(server_, {"generate", "job-s", "--prompt", "a"});
  EXPECT_NE(run.code, kSucceeded);
  EXPECT_EQ(run.out, "") << "nothing was answered";
  run = Sftctl(server_, {"generate", "job-s", "--prompt", "a", "--num-beams", "4"});
  EXPECT_NE(run.code, kSucceeded);
  EXPECT_THAT(run.err, HasSubstr("leave out --num-beams"));
  EXPECT_EQ(server_.questions.size(), 2u);
}

TEST_F(GenerateTest, TheJobIsOfTheProjectOfWhatAnswers) {
  server_.jobs["job-a"].set_name("projects/others/jobs/job-a");
  EXPECT_EQ(Sftctl(server_, {"generate", "job-a", "--prompt", "a"}).code, kSucceeded);
  EXPECT_EQ(server_.submitted.at(0).project(), "others");
  EXPECT_EQ(Sftctl(server_, {"generate", "job-a", "--prompt", "a", "--project", "mine"}).code,
            kSucceeded);
  EXPECT_EQ(server_.submitted.at(1).project(), "mine");
}

}  // namespace
}  // namespace sft::client
