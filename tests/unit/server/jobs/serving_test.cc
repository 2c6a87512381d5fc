#include "server/jobs/serving.h"

#include <gmock/gmock.h>

#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

using ::testing::HasSubstr;

class ServingTest : public FleetTest {
 protected:
  ServingTest() : relay_(*registry_), serving_(*store_, relay_) {}

  // A running job of this kind on node "a", whose process answers with these lines.
  std::string Running(v1::Job::Kind kind, const std::vector<std::string>& lines) {
    worker_ = Join("a", "CPU", 1);
    worker_->on_ask = [this, lines](const v1::Ask& ask) {
      asked_ = ask;
      v1::SendFileRequest chunk;
      chunk.set_request(ask.request());
      for (const std::string& line : lines) {
        chunk.set_offset(chunk.total_size());
        chunk.set_data(line);
        chunk.set_total_size(chunk.offset() + static_cast<int64_t>(line.size()));
        if (line.starts_with("!")) chunk.set_error(line);
        EXPECT_TRUE(relay_.Push(chunk, "a").ok());
      }
      relay_.End(ask.request());
    };
    JobRecord job;
    job.id = "job-1";
    job.project = "default";
    job.kind = kind;
    job.gpu_type = "CPU";
    job.spec.emplace();
    EXPECT_TRUE(jobs_->Submit(job, {}).ok());
    Tick();
    Report("a", worker_, Uid("job-1"), v1::AttemptStatus::RUNNING);
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
