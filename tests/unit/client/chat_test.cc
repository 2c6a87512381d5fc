#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "client/base/exit_codes.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ChatTest : public ::testing::Test {
 protected:
  ChatTest() {
    v1::Job served = MakeJob("job-s", v1::Job::RUNNING);
    served.set_kind(v1::Job::SERVE);
    server_.jobs["job-s"] = served;
    v1::Job trained = MakeJob("job-a", v1::Job::SUCCEEDED);
    trained.set_name("projects/others/jobs/job-a");
    trained.set_resolved_json(R"({"job":{"model":"org/tiny"},"compute":{"gpu_type":"H100"}})");
    server_.jobs["job-a"] = trained;
    server_.jobs["job-new"] = MakeJob("job-new", v1::Job::RUNNING);
    server_.artifact.set_name("artifacts/a");
    server_.artifact.set_kind("adapter");
    server_.watches = {{{served}}};
  }

  // Runs `sftctl chat` with these lines as its standard input.
  Outcome Chat(const std::string& lines, const std::vector<std::string>& arguments) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    EXPECT_EQ(write(ends[1], lines.data(), lines.size()), static_cast<ssize_t>(lines.size()));
    close(ends[1]);
    const int input = dup(STDIN_FILENO);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    std::vector<std::string> all = {"chat"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Outcome run = Sftctl(server_, all);
    dup2(input, STDIN_FILENO);
    close(input);
    return run;
  }
  // What was said in a question, "user: hello / assistant: hi".
  std::string Said(size_t question) {
    std::string said;
    for (const v1::ChatMessage& message : server_.questions.at(question).messages()) {
      if (!said.empty()) said += " / ";
      said += message.role() + ": " + message.content();
    }
    return said;
  }

  FakeServer server_;
};

TEST_F(ChatTest, EachQuestionTellsWhatWasSaid) {
  server_.answers = {{{"One", " two"}}, {{"Three"}}};
  const Outcome run = Chat("a\nb\n", {"job-s", "--system", "Be brief."});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, "One two\nThree\n");
  EXPECT_EQ(Said(1), "system: Be brief. / user: a / assistant: One two / user: b");
}

TEST_F(ChatTest, AQuestionThatFailsIsForgottenAndTheConversationGoesOn) {
  server_.answers = {{{"One"}},
                     {.error = "the prompt is too long"},
                     {{"half"}, {grpc::StatusCode::UNAVAILABLE, "the server restarts"}},
                     {{"Four"}}};
  const Outcome run = Chat("a\nb\nc\n\xff\nd\n", {"job-s"});
  EXPECT_EQ(run.out, "One\n\nhalf\nFour\n");
  EXPECT_THAT(run.err, HasSubstr("the prompt is too long"));
  EXPECT_THAT(run.err, HasSubstr("the server restarts"));
  EXPECT_THAT(run.err, HasSubstr("not UTF-8"));
  ASSERT_EQ(server_.questions.size(), 4u);
  EXPECT_EQ(Said(3), "user: a / assistant: One / user: d");
  // A script learns that not all was answered.
  EXPECT_NE(run.code, kSucceeded);
  EXPECT_THAT(run.err, HasSubstr("questions that were not answered: 3"));
}

TEST_F(ChatTest, TheEndOfTheJobEndsTheChat) {
  server_.answers = {{.status = {grpc::StatusCode::FAILED_PRECONDITION, "job job-s is FAILED"}}};
  server_.jobs["job-s"] = MakeFailed("job-s", v1::Verdict::INFRASTRUCTURE);
  server_.jobs["job-s"].set_kind(v1::Job::SERVE);
  const Outcome run = Chat("a\nb\n", {"job-s"});
  EXPECT_NE(run.code, kSucceeded);
  EXPECT_EQ(server_.questions.size(), 1u);
  EXPECT_THAT(run.err, HasSubstr("it broke"));
}

TEST_F(ChatTest, ItWaitsWhileAsManyQuestionsAreAnsweredAsCanBe) {
  const std::string full = "256 questions are being answered: try again later";
  server_.answers = {{.status = {grpc::StatusCode::RESOURCE_EXHAUSTED, full}},
                     {.status = {grpc::StatusCode::UNAVAILABLE, "its model is not loaded yet"}},
                     {{"One"}}};
  const Outcome run = Chat("a\n", {"job-s"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, "One\n");
  EXPECT_THAT(run.err, HasSubstr("waits: " + full));
  EXPECT_EQ(Said(2), "user: a");
}

TEST_F(ChatTest, OfSeveralTheOneThatWaitsIsNamedAndItsAnswerIsToo) {
  server_.answers = {{.status = {grpc::StatusCode::UNAVAILABLE, "its model is not loaded yet"}},
                     {{"One"}},
                     {{"Two"}}};
  const Outcome run = Chat("a\n", {"job-s", "--base"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, "[trained] One\n[base] Two\n");
  EXPECT_THAT(run.err, HasSubstr("[trained] waits: its model is not loaded yet\n"));
}

TEST_F(ChatTest, CheckpointsTheResultAndTheBaseAnswerSideBySide) {
  server_.jobs["job-a"].set_state(v1::Job::RUNNING);
  server_.answers = {{{"One"}}, {{"Two"}}, {{"Three"}}, {{"Four"}}};
  const std::vector<v1::Job> running = {MakeJob("job-new", v1::Job::RUNNING)};
  server_.watches = {{running}, {running}, {running}};
  const Outcome run =
      Chat("a\n", {"job-a", "--checkpoint", "best", "--checkpoint", "40", "--delivered", "--base"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, "[best] One\n[40] Two\n[trained] Three\n[base] Four\n");
  ASSERT_EQ(server_.submitted.size(), 3u);
  EXPECT_THAT(server_.submitted[0].source_text(), HasSubstr("adapter = \"job-a@best\""));
  EXPECT_THAT(server_.submitted[1].source_text(), HasSubstr("adapter = \"job-a@40\""));
  EXPECT_THAT(server_.submitted[2].source_text(), HasSubstr("adapter = \"job-a\""));
  EXPECT_FALSE(server_.questions.at(0).base());
  EXPECT_TRUE(server_.questions.at(3).base());
}

TEST_F(ChatTest, AJobThatServesTakesNoCheckpoint) {
  const Outcome run = Chat("a\n", {"job-s", "--checkpoint", "best"});
  EXPECT_EQ(run.code, kUsage) << run.err;
  EXPECT_THAT(run.err, HasSubstr("give --checkpoint the job that trains"));
  EXPECT_TRUE(server_.submitted.empty());
}

TEST_F(ChatTest, ItsOwnJobIsOfTheProjectOfWhatAnswersAndIsEndedThroughARestartOfTheServer) {
  server_.answers = {{{"One"}}};
  server_.watches = {{{MakeJob("job-new", v1::Job::RUNNING)}}};
  server_.cancels_lost = 3;
  const Outcome run = Chat("a\n", {"job-a"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(server_.submitted.at(0).project(), "others");
  EXPECT_EQ(server_.jobs["job-new"].state(), v1::Job::CANCELLING);
  EXPECT_THAT(run.err, HasSubstr("cancelled job-new"));
  EXPECT_THAT(run.err, Not(HasSubstr("end it with")));
}

}  // namespace
}  // namespace sft::client
