#include "worker/grading/judges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <thread>
#include <vector>

#include "common/io/file.h"
#include "worker/grading/answer_graders.h"

namespace sft::grading {
namespace {

using ::testing::HasSubstr;

spec::Grader ByPattern() {
  spec::Grader grader;
  grader.type = spec::Grader::Type::kJudge;
  grader.name = "good";
  grader.high = 10;
  grader.prompt = "{prompt} {answer} {reference}";
  grader.score_pattern = "Score: ([-0-9.]+)";
  return grader;
}

// A judge whose replies are given, and what it was asked.
struct Asked {
  explicit Asked(std::vector<JudgeReply> given) : replies(std::move(given)) {}
  Judge::Ask Ask() {
    return [this](const spec::Grader&, const std::string& prompt) {
      prompts.push_back(prompt);
      return replies[std::min(prompts.size(), replies.size()) - 1];
    };
  }
  std::string ErrorOf(Judge& judge) {
    return std::string(Message(judge.Grade({.answer = "a"}, stop).score.status()));
  }
  std::vector<JudgeReply> replies;
  std::vector<std::string> prompts;
  FakeClock clock;
  std::atomic<bool> stop = false;
};

TEST(JudgesTest, AScoreIsReadOutOfAReply) {
  spec::Grader grader = ByPattern();
  const Verdict verdict = ReadReply(grader, "Score: 1? No.\nScore: 7.5");
  EXPECT_EQ(*verdict.score, 75);
  EXPECT_EQ(verdict.text, "Score: 1? No.\nScore: 7.5");
  EXPECT_THAT(std::string(Message(ReadReply(grader, "Score: 11").score.status())),
              HasSubstr("good gave the score 11, which is not between 0 and 10"));
  for (const char* rubbish : {"", "7", "Score: -", "Score: 1.2.3", "score: 7"}) {
    EXPECT_THAT(std::string(Message(ReadReply(grader, rubbish).score.status())),
                HasSubstr("good's reply holds no score"))
        << rubbish;
  }
  grader.score_pattern.clear();
  grader.score_member = "score";
  EXPECT_EQ(*ReadReply(grader, "{\"score\": 10}").score, 100);
  EXPECT_EQ(*ReadReply(grader, "Well.\n```json\n{\"why\": \"{}\", \"score\": \"5\"}\n```").score,
            50);
  for (const char* rubbish : {"10", "{\"score\": \"high\"}", "{\"score\": null}", "{", "}{",
                              "{\"scores\": 1}", "{\"score\": 1e999}"}) {
    EXPECT_THAT(std::string(Message(ReadReply(grader, rubbish).score.status())),
                HasSubstr("a JSON object with the number score"))
        << rubbish;
  }
}

TEST(JudgesTest, ACallWithoutAReplyIsMadeAgainAsOftenAsTheJobSays) {
  spec::Grader grader = ByPattern();
  grader.retries = 2;
  Asked asked({{.error = "busy", .again = true, .after_seconds = 7},
               {.error = "busy", .again = true},
               {.text = "Score: 5"}});
  Judge judge(grader, asked.Ask(), asked.clock);
  const MonoTime begin = asked.clock.Mono();
  const Verdict verdict =
      judge.Grade({.prompt = "p", .reference = "r", .answer = "{reference}"}, asked.stop);
  EXPECT_EQ(*verdict.score, 50);
  EXPECT_EQ(asked.prompts, std::vector<std::string>(3, "p {reference} r"));
  EXPECT_GE(asked.clock.Mono() - begin, std::chrono::seconds(9)) << "7 s as asked for, then 2 s";
  asked.prompts.clear();
  asked.replies = {{.error = "HTTP status 500", .again = true}};
  EXPECT_EQ(asked.ErrorOf(judge), "good gave no reply: HTTP status 500 (the last of 3 calls)");
  EXPECT_EQ(asked.prompts.size(), 3u);
  asked.prompts.clear();
  asked.replies = {{.error = "HTTP status 401"}};
  EXPECT_EQ(asked.ErrorOf(judge), "good gave no reply: HTTP status 401");
  EXPECT_EQ(asked.prompts.size(), 1u) << "nothing comes of asking again";
  asked.prompts.clear();
  asked.replies = {{.error = "HTTP status 429", .again = true, .after_seconds = 3600}};
  EXPECT_THAT(asked.ErrorOf(judge), HasSubstr("wants 3600 s until the next call"));
  EXPECT_EQ(asked.prompts.size(), 1u);
}

TEST(JudgesTest, AWorkerOrServerThatIsAwayIsWaitedForAndCountsAsNoCall) {
  spec::Grader grader = ByPattern();
  grader.retries = 0;
  std::vector<JudgeReply> replies(9, {.error = "the server is away", .away = true});
  replies.push_back({.text = "Score: 1"});
  Asked asked(replies);
  Judge judge(grader, asked.Ask(), asked.clock);
  EXPECT_EQ(*judge.Grade({.answer = "a"}, asked.stop).score, 10);
  asked.replies = {{.error = "the server is away", .away = true}};
  const MonoTime begin = asked.clock.Mono();
  EXPECT_EQ(asked.ErrorOf(judge), "good gave no reply: the server is away");
  EXPECT_GE(asked.clock.Mono() - begin, Judge::kAway);
}

TEST(JudgesTest, AServerThatIsBusyIsWaitedForAsLongAsItTakes) {
  spec::Grader grader = ByPattern();
  grader.retries = 0;
  std::vector<JudgeReply> replies(1000, {.error = "no place", .away = true, .busy = true});
  replies.push_back({.text = "Score: 1"});
  Asked asked(replies);
  Judge judge(grader, asked.Ask(), asked.clock);
  const MonoTime begin = asked.clock.Mono();
  EXPECT_EQ(*judge.Grade({.answer = "a"}, asked.stop).score, 10);
  EXPECT_GT(asked.clock.Mono() - begin, Judge::kAway);
  EXPECT_LT(asked.clock.Mono() - begin, std::chrono::seconds(1100)) << "a second each";
}

TEST(JudgesTest, AJudgeThatIsDownIsNotAskedForEver) {
  spec::Grader grader = ByPattern();
  grader.retries = 0;
  Asked asked({{.error = "down", .again = true}});
  Judge judge(grader, asked.Ask(), asked.clock);
  for (int i = 0; i < Judge::kGiveUpAfter - 1; ++i) {
    EXPECT_EQ(asked.ErrorOf(judge), "good gave no reply: down");
  }
  asked.replies = {{.text = "rubbish"}};
  EXPECT_THAT(asked.ErrorOf(judge), HasSubstr("holds no score")) << "it is there";
  asked.replies = {{.error = "down", .again = true}};
  for (int i = 0; i < Judge::kGiveUpAfter; ++i) EXPECT_NE(asked.ErrorOf(judge), "");
  asked.prompts.clear();
  EXPECT_EQ(asked.ErrorOf(judge),
            "good was not asked any more: 20 questions in a row got no reply; the last: down");
  EXPECT_TRUE(asked.prompts.empty());
}

TEST(JudgesTest, APromptThatIsTooLongIsNotSent) {
  Asked asked({{.text = "Score: 1"}});
  Judge judge(ByPattern(), asked.Ask(), asked.clock);
  const Verdict verdict = judge.Grade({.answer = std::string(2 << 20, 'a')}, asked.stop);
  EXPECT_THAT(std::string(Message(verdict.score.status())), HasSubstr("its prompt would have"));
  EXPECT_TRUE(asked.prompts.empty());
}

TEST(JudgesTest, WhatTheWorkerSaysIsMaterial) {
  EXPECT_EQ(ParseJudgeReply("{\"text\": \"a\"}").text, "a");
  const JudgeReply wrong =
      ParseJudgeReply("{\"error\": \"busy\", \"again\": true, \"away\": false, \"after\": 2.5}");
  EXPECT_EQ(wrong.error, "busy");
  EXPECT_TRUE(wrong.again);
  EXPECT_FALSE(wrong.away);
  EXPECT_FALSE(wrong.busy);
  EXPECT_TRUE(ParseJudgeReply("{\"error\": \"no place\", \"busy\": true}").busy);
  EXPECT_EQ(wrong.after_seconds, 2.5);
  for (const char* line : {"", "[]", "{}", "{\"text\": 1}", "{\"error\": 1}", "x"}) {
    EXPECT_TRUE(ParseJudgeReply(line).away) << line;
  }
}

// A worker that answers one question on a socket.
class Worker {
 public:
  Worker(const std::string& path, std::string answer) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path.data(), path.size());
    listener_ = io::UniqueFd(socket(AF_UNIX, SOCK_STREAM, 0));
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 1), 0);
    thread_ = std::thread([this, answer = std::move(answer)] {
      const io::UniqueFd fd(accept(listener_.get(), nullptr, nullptr));
      char letter = 0;
      while (recv(fd.get(), &letter, 1, 0) == 1 && letter != '\n') question += letter;
      EXPECT_EQ(send(fd.get(), answer.data(), answer.size(), 0),
                static_cast<ssize_t>(answer.size()));
    });
  }
  ~Worker() { Join(); }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  std::string question;

 private:
  io::UniqueFd listener_;
  std::thread thread_;
};

TEST(JudgesTest, AQuestionGoesToTheWorkersSocket) {
  const std::string dir = io::MakeTempDir("judges-test").value();
  const std::atomic<bool> stop = false;
  const Judge::Ask ask = AskWorkerOn(dir + "/judge", stop);
  EXPECT_TRUE(ask(ByPattern(), "how good?").away) << "nobody listens";
  Worker worker(dir + "/judge", "{\"text\": \"Score: 3\"}\n");
  EXPECT_EQ(ask(ByPattern(), "how \"good\"?").text, "Score: 3");
  worker.Join();
  EXPECT_EQ(worker.question, "{\"grader\":\"good\",\"prompt\":\"how \\\"good\\\"?\"}");
  EXPECT_FALSE(AskWorkerOn("", stop)(ByPattern(), "").away) << "waiting changes nothing";
  const JudgeReply cut = AskWorkerOn("/" + std::string(200, 'a'), stop)(ByPattern(), "");
  EXPECT_FALSE(cut.away);
  EXPECT_THAT(cut.error, HasSubstr("has 201 characters, 107 at most"));
  (void)io::RemoveAll(dir);
}

TEST(JudgesTest, DestroyingTheGradersEndsAQuestionThatGetsNoReply) {
  const std::string dir = io::MakeTempDir("judges-test").value();
  {
    AnswerGraders graders(
        {.graders = {ByPattern()}, .judge_socket = dir + "/judge", .judge_threads = 2});
    for (int64_t row = 0; row < 5; ++row) graders.Add(row, {{.line = row}});
    EXPECT_FALSE(graders.Take(0));
  }
  (void)io::RemoveAll(dir);
}

}  // namespace
}  // namespace sft::grading
