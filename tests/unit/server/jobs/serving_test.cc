#include "server/jobs/serving.h"

#include <gmock/gmock.h>

#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

using ::testing::HasSubstr;

class ServingTest : public FleetTest {
 protected:
  ServingTest() : relay_(*registry_), serving_(*store_, relay_) {}

  // A node whose process answers with these lines.
  std::shared_ptr<FakeWorker> Answering(const std::string& node,
                                        const std::vector<std::string>& lines) {
    const std::shared_ptr<FakeWorker> worker = Join(node, "CPU", 1);
    worker->on_ask = [this, node, lines](const v1::Ask& ask) {
      asked_ = ask;
      nodes_ += node;
      v1::SendFileRequest chunk;
      chunk.set_request(ask.request());
      for (const std::string& line : lines) {
        chunk.set_offset(chunk.total_size());
        chunk.set_data(line);
        chunk.set_total_size(chunk.offset() + static_cast<int64_t>(line.size()));
        if (line.starts_with("!")) chunk.set_error(line);
        EXPECT_TRUE(relay_.Push(chunk, node).ok());
      }
      relay_.End(ask.request());
    };
    return worker;
  }
  // A running job of this kind on node "a", whose process answers with these lines; on "b" too
  // where that has some.
  std::string Running(v1::Job::Kind kind, const std::vector<std::string>& lines,
                      const std::vector<std::string>& others = {}) {
    worker_ = Answering("a", lines);
    const auto other = others.empty() ? nullptr : Answering("b", others);
    JobRecord job;
    job.id = "job-1";
    job.project = "default";
    job.kind = kind;
    job.gpu_type = "CPU";
    if (other) job.nodes = 2;
    job.spec.emplace();
    EXPECT_TRUE(jobs_->Submit(job, {}).ok());
    Tick();
    Report("a", worker_, Uid("job-1"), v1::AttemptStatus::RUNNING);
    if (other) Report("b", other, Uid("job-1"), v1::AttemptStatus::RUNNING);
    return "job-1";
  }
  static v1::GenerateRequest Question(const std::string& name) {
    v1::GenerateRequest request;
    request.set_name(name);
    request.set_max_new_tokens(7);
    v1::ChatMessage& message = *request.add_messages();
    message.set_role("user");
    message.set_content("a \"b\"");
    return request;
  }
  // The pieces' texts, joined, and what the call ended with.
  absl::Status Ask(const v1::GenerateRequest& request) {
    return serving_.Ask(request, [this](const v1::GenerateResponse& piece) {
      text_ += piece.text();
      last_ = piece;
      return true;
    });
  }

  FileRelay relay_;
  Serving serving_;
  std::shared_ptr<FakeWorker> worker_;
  v1::Ask asked_;
  std::string nodes_;  // that were asked, in their order
  std::string text_;
  v1::GenerateResponse last_;
};

TEST_F(ServingTest, AQuestionGoesToTheProcessAndItsAnswerComesBackInPieces) {
  const std::string job = Running(
      v1::Job::SERVE, {"{\"text\":\"One\"}\n", "{\"text\":\" two\"}\n",
                       "{\"finish_reason\":\"stop\",\"prompt_tokens\":3,\"answer_tokens\":2}\n"});
  const absl::Status status = Ask(Question(job));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(text_, "One two");
  EXPECT_EQ(last_.finish_reason(), "stop");
  EXPECT_EQ(last_.answer_tokens(), 2);
  EXPECT_EQ(asked_.attempt_uid(), Uid(job));
  EXPECT_EQ(asked_.question(),
            "{\"messages\":[{\"role\":\"user\",\"content\":\"a \\\"b\\\"\"}],\"base\":false,"
            "\"max_new_tokens\":7}");
}

TEST_F(ServingTest, AModelThatIsNotLoadedYetAndAProcessThatDiesMayBeThereInAMoment) {
  const std::string job = Running(v1::Job::SERVE, {"!its model is not loaded yet"});
  const absl::Status loading = Ask(Question(job));
  EXPECT_TRUE(absl::IsUnavailable(loading)) << loading;
  EXPECT_THAT(std::string(Message(loading)), HasSubstr("not loaded yet"));
}

TEST_F(ServingTest, AnAnswerThatBreaksOffIsNoAnswer) {
  const std::string job = Running(v1::Job::SERVE, {"{\"text\":\"One\"}\n"});
  EXPECT_TRUE(absl::IsUnavailable(Ask(Question(job))));
}

TEST_F(ServingTest, AnotherNodeGoesOnWithAnAnswerThatBreaksOff) {
  const std::string job =
      Running(v1::Job::SERVE, {"{\"text\":\"One tw\"}\n"},
              {"{\"text\":\"One\"}\n", "{\"text\":\" two\"}\n", "{\"text\":\" three\"}\n",
               "{\"finish_reason\":\"stop\",\"prompt_tokens\":3,\"answer_tokens\":3}\n"});
  const absl::Status status = Ask(Question(job));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(nodes_, "ab");
  EXPECT_EQ(text_, "One two three");
  EXPECT_EQ(last_.answer_tokens(), 3);
}

TEST_F(ServingTest, AnswersOfTwoNodesAreNotMixed) {
  const std::string job =
      Running(v1::Job::SERVE, {"{\"text\":\"One\"}\n"}, {"{\"text\":\"On the other\"}\n"});
  const absl::Status status = Ask(Question(job));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(Message(status)), HasSubstr("ended before its answer"));
  EXPECT_EQ(text_, "One");
}

TEST_F(ServingTest, ANodeThatIsAwayOrHasNoModelYetIsPassedOver) {
  const std::string end = "{\"finish_reason\":\"stop\"}\n";
  const std::string job = Running(v1::Job::SERVE, {"!its model is not loaded yet"}, {end});
  EXPECT_TRUE(Ask(Question(job)).ok());
  EXPECT_EQ(nodes_, "ab");
  registry_->Disconnect("a", worker_.get());
  EXPECT_TRUE(Ask(Question(job)).ok());
  EXPECT_EQ(nodes_, "abb");
}

TEST_F(ServingTest, OfSeveralAnswersEachGoesOnWhereItWas) {
  const std::string job =
      Running(v1::Job::SERVE,
              {"{\"index\":0,\"text\":\"a\",\"tokens\":[{\"id\":1}]}\n",
               "{\"index\":1,\"text\":\"b\",\"tokens\":[{\"id\":2}]}\n",
               "{\"index\":1,\"finish_reason\":\"stop\"}\n"},
              {"{\"index\":1,\"text\":\"b\",\"tokens\":[{\"id\":2}]}\n",
               "{\"index\":1,\"finish_reason\":\"stop\"}\n",
               "{\"index\":0,\"text\":\"ac\",\"tokens\":[{\"id\":1},{\"id\":3}]}\n",
               "{\"index\":0,\"finish_reason\":\"length\"}\n"});
  v1::CompleteRequest request;
  request.set_name(job);
  request.add_prompts()->set_text("x");
  request.add_prompts()->set_text("y");
  std::string texts[2];
  std::vector<int64_t> tokens[2];
  int ends = 0;
  const absl::Status status = serving_.Complete(request, [&](const v1::CompleteResponse& piece) {
    texts[piece.index()] += piece.text();
    for (const auto& token : piece.tokens()) tokens[piece.index()].push_back(token.id());
    ends += piece.finish_reason().empty() ? 0 : 1;
    return true;
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(texts[0], "ac");
  EXPECT_EQ(texts[1], "b");
  EXPECT_EQ(tokens[0], (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(tokens[1], (std::vector<int64_t>{2}));
  EXPECT_EQ(ends, 2);
}

TEST_F(ServingTest, ATokenizersAnswerThatBreaksOffBeginsAgain) {
  v1::TokenizeRequest request;
  request.set_name(Running(v1::Job::SERVE, {"{\"tokens\":[1,2]}\n"},
                           {"{\"tokens\":[1,2]}\n", "{\"end\":true}\n"}));
  request.set_text("abc");
  const auto answer = serving_.Tokenize(request);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->tokens_size(), 2);
}

TEST_F(ServingTest, SeveralPromptsAreOneQuestionAndItsAnswersAreNumbered) {
  const std::string job = Running(
      v1::Job::SERVE,
      {"{\"text\":\"\"}\n",
       "{\"index\":1,\"text\":\"b\",\"tokens\":[{\"id\":5,\"text\":\"b\",\"logprob\":-0.5,"
       "\"top\":[{\"id\":6,\"text\":\"c\",\"logprob\":-0.25}]},{\"id\":-7},8]}\n",
       "{\"index\":1,\"finish_reason\":\"length\",\"prompt_tokens\":1,\"answer_tokens\":1}\n",
       "{\"index\":0,\"finish_reason\":\"stop\",\"prompt_tokens\":2,\"answer_tokens\":0}\n",
       "{\"index\":0,\"text\":\"behind the end\"}\n"});
  v1::CompleteRequest request;
  request.set_name(job);
  request.add_prompts()->set_text("a");
  request.add_prompts()->add_tokens(3);
  request.set_logprobs(1);
  request.add_stop("end");
  std::vector<v1::CompleteResponse> pieces;
  const absl::Status status = serving_.Complete(request, [&](const v1::CompleteResponse& piece) {
    pieces.push_back(piece);
    return true;
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(asked_.question(),
            "{\"prompts\":[{\"prompt\":\"a\"},{\"tokens\":[3]}],\"base\":false,\"stop\":[\"end\"],"
            "\"logprobs\":1}");
  ASSERT_EQ(pieces.size(), 4u);
  ASSERT_EQ(pieces[1].tokens_size(), 3) << "what is no token has no id";
  EXPECT_EQ(pieces[1].tokens(0).logprob(), -0.5);
  EXPECT_EQ(pieces[1].tokens(0).top(0).id(), 6);
  EXPECT_EQ(pieces[1].tokens(1).id(), -1);
  EXPECT_FALSE(pieces[1].tokens(1).has_logprob());
}

TEST_F(ServingTest, AProcessThatRefusesOrAnswersWhatWasNotAskedIsToldApart) {
  v1::CompleteRequest request;
  request.add_prompts()->set_text("a");
  const auto ask = [&](const std::string& line) {
    request.set_name(Running(v1::Job::SERVE, {line}));
    return serving_.Complete(request, [](const v1::CompleteResponse&) { return true; });
  };
  const absl::Status refused =
      ask("{\"finish_reason\":\"error\",\"error\":\"top_p is 2\",\"refused\":true}\n");
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(Message(refused)), HasSubstr("top_p is 2"));
}

TEST_F(ServingTest, AnswersThatWereNotAskedForAreNone) {
  v1::CompleteRequest request;
  request.add_prompts()->set_text("a");
  request.set_name(Running(v1::Job::SERVE, {"{\"index\":1,\"text\":\"b\"}\n"}));
  const auto take = [](const v1::CompleteResponse&) { return true; };
  EXPECT_TRUE(absl::IsUnavailable(serving_.Complete(request, take)));
  request.mutable_prompts(0)->add_tokens(1);
  EXPECT_TRUE(absl::IsInvalidArgument(serving_.Complete(request, take))) << "text and tokens";
  request.clear_prompts();
  EXPECT_TRUE(absl::IsInvalidArgument(serving_.Complete(request, take)));
}

TEST_F(ServingTest, TokensComeInSeveralLines) {
  v1::TokenizeRequest request;
  request.set_name(Running(v1::Job::SERVE, {"{\"tokens\":[1,2]}\n", "{\"tokens\":[3]}\n",
                                            "{\"max_tokens\":64}\n", "{\"end\":true}\n"}));
  request.set_text("abc");
  const auto answer = serving_.Tokenize(request);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->tokens_size(), 3);
  EXPECT_EQ(answer->max_tokens(), 64);
  EXPECT_EQ(asked_.question(), "{\"tokenize\":\"abc\",\"add_special_tokens\":false}");
}

TEST_F(ServingTest, RunningJobsThatServeAreListedToThoseWhoMaySeeThem) {
  Running(v1::Job::SERVE, {});
  const auto all = serving_.List(std::nullopt);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 1u);
  EXPECT_EQ(all->front().name(), "projects/default/jobs/job-1");
  EXPECT_TRUE(all->front().running());
  EXPECT_EQ(serving_.List(std::vector<std::string>{"default"})->size(), 1u);
  EXPECT_TRUE(serving_.List(std::vector<std::string>{"other"})->empty());
}

TEST_F(ServingTest, OnlyARunningJobThatServesCanBeAsked) {
  const std::string job = Running(v1::Job::SFT, {});
  EXPECT_TRUE(absl::IsFailedPrecondition(Ask(Question(job))));
  EXPECT_TRUE(absl::IsNotFound(Ask(Question("job-2"))));
  v1::GenerateRequest empty;
  empty.set_name(job);
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(empty)));
}

}  // namespace
}  // namespace sft::server
