#include "server/services/log_stream.h"

#include <fmt/format.h>

#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

class LogStreamTest : public FleetTest {
 protected:
  LogStreamTest()
      : logs_(dir_ + "/logs", {.log_bytes = 64 << 10}),
        metrics_(dir_ + "/metrics"),
        tensorboard_(dir_ + "/tensorboard"),
        ingest_(*store_, clock_, logs_, metrics_, tensorboard_, hub_) {
    worker_ = Join("a", "CPU", 1);
    job_ = Submit("CPU", 1);
    Tick();
  }

  void Write(int64_t offset, const std::string& data, bool end = false) {
    v1::AppendLogRequest request;
    request.set_attempt_uid(Uid(job_));
    request.set_epoch(attempt_);
    request.set_offset(offset);
    request.set_data(data);
    request.set_end_of_file(end);
    request.set_node("a");
    const auto written = ingest_.AppendLog(request);
    ASSERT_TRUE(written.ok()) << written.status();
  }
  // The attempt ends in a way after which the job waits for another one, which is then placed.
  void Restart() {
    ASSERT_TRUE(store_
                    ->Write([&](Database& db) -> absl::Status {
                      SFT_RETURN_IF_ERROR(db.Execute("UPDATE attempts SET state = 6"));
                      SFT_RETURN_IF_ERROR(db.Execute("UPDATE allocations SET freed_us = 1"));
                      return db.Execute("UPDATE jobs SET state = 1");
                    })
                    .ok());
    Tick();
    ++attempt_;
    ASSERT_EQ(Job(job_).attempt(), attempt_);
  }
  void EndJob() {
    ASSERT_TRUE(store_
                    ->Write([](Database& db) -> absl::Status {
                      SFT_RETURN_IF_ERROR(db.Execute("UPDATE attempts SET state = 5"));
                      return db.Execute("UPDATE jobs SET state = 5");
                    })
                    .ok());
  }

  v1::ReadLogRequest Follow(bool next_attempts = true) {
    v1::ReadLogRequest request;
    request.set_name(job_);
    request.set_follow(true);
    request.set_next_attempts(next_attempts);
    return request;
  }
  // Answers of a follower's looks; `on_answer` comes between two of them.
  class Answers final : public Exchange {
   public:
    const CallOrigin& origin() const override { return origin_; }
    absl::StatusOr<bool> Read(google::protobuf::Message&) override { return false; }
    bool Write(const google::protobuf::Message& message) override {
      answers.push_back(static_cast<const v1::ReadLogResponse&>(message));
      return true;
    }
    bool Gone() const override { return false; }
    std::vector<v1::ReadLogResponse> answers;

   private:
    CallOrigin origin_;
  };

  // What a reader gets that calls `on_answer` for each answer, until there is nothing more to look
  // for.
  std::string Read(const v1::ReadLogRequest& request,
                   const std::function<void(const v1::ReadLogResponse&)>& on_answer = {}) {
    std::string text;
    LogStream stream(ingest_, request);
    next_ = Follower::Next::kAgain;
    while (next_ == Follower::Next::kAgain) {
      Answers exchange;
      const absl::StatusOr<Follower::Next> looked = stream.Look(exchange);
      status_ = looked.status();
      next_ = looked.value_or(Follower::Next::kEnd);
      EXPECT_LE(exchange.answers.size(), 1u);
      for (const v1::ReadLogResponse& answer : exchange.answers) {
        if (answer.has_gap()) {
          text += fmt::format("[{}-{})", answer.gap().begin(), answer.gap().end());
        }
        text += answer.data();
        if (answer.end_of_file()) text += fmt::format("<end of {}>", answer.attempt());
        if (on_answer) on_answer(answer);
      }
    }
    keys_ = stream.keys();
    return text;
  }

  LogStore logs_;
  MetricLog metrics_;
  TensorBoard tensorboard_;
  Ingest ingest_;
  std::shared_ptr<FakeWorker> worker_;
  std::string job_;
  int attempt_ = 1;
  absl::Status status_;
  Follower::Next next_ = Follower::Next::kAgain;
  std::vector<std::string> keys_;
};

TEST_F(LogStreamTest, AFollowedLogGoesOnWithTheNextAttempt) {
  Write(0, "first\n", /*end=*/true);
  Restart();
  Write(0, "second\n");
  const std::string text = Read(Follow(), [&](const v1::ReadLogResponse& answer) {
    if (answer.data() != "second\n") return;
    EXPECT_EQ(answer.attempt(), 2);
    EXPECT_EQ(answer.offset(), 0);
    Write(7, "and its end\n", /*end=*/true);
    EndJob();
  });
  // Asked for "the last attempt", that is the second; from the first on both come.
  EXPECT_EQ(text, "second\nand its end\n<end of 2>");
  v1::ReadLogRequest from_first = Follow();
  from_first.set_attempt(1);
  from_first.set_offset(2);
  EXPECT_EQ(Read(from_first), "rst\nsecond\nand its end\n<end of 2>");
  EXPECT_TRUE(status_.ok()) << status_;
}

TEST_F(LogStreamTest, ARestartWhileALogIsFollowedIsSeen) {
  Write(0, "first\n");
  bool restarted = false;
  const std::string text = Read(Follow(), [&](const v1::ReadLogResponse& answer) {
    if (answer.attempt() == 1 && !restarted) {
      restarted = true;
      Write(6, "killed\n", /*end=*/true);
      Restart();
      Write(0, "second\n", /*end=*/true);
      EndJob();
    }
  });
  EXPECT_EQ(text, "first\nkilled\nsecond\n<end of 2>");
}

TEST_F(LogStreamTest, AReaderOfOneAttemptEndsWithIt) {
  Write(0, "first\n", /*end=*/true);
  Restart();
  v1::ReadLogRequest request = Follow(/*next_attempts=*/false);
  request.set_attempt(1);
  EXPECT_EQ(Read(request), "first\n<end of 1>");
}

TEST_F(LogStreamTest, AReaderThatDoesNotKeepUpIsToldWhatItMissedAndBlocksNobody) {
  const std::string piece(1000, 'x');
  for (int i = 0; i < 8; ++i) Write(i * 1000, piece);
  v1::ReadLogRequest request = Follow();
  bool flooded = false;
  int64_t from = -1, to = -1, expected = 0;
  Read(request, [&](const v1::ReadLogResponse& answer) {
    if (answer.has_gap()) {
      from = answer.gap().begin();
      to = answer.gap().end();
      EXPECT_EQ(from, expected);
      expected = to;
    }
    EXPECT_EQ(answer.offset(), expected);
    expected = answer.offset() + static_cast<int64_t>(answer.data().size());
    if (flooded) return;
    flooded = true;  // while this reader handles its first answer
    for (int i = 8; i < 500; ++i) Write(i * 1000, piece);
    Write(500'000, "", /*end=*/true);
    EndJob();
  });
  EXPECT_EQ(from, 8000);
  EXPECT_GT(to, 400'000);
  EXPECT_EQ(expected, 500'000);
}

TEST_F(LogStreamTest, AServerThatLostTheEndOfALogWaitsForItAgain) {
  Write(0, "first\n");
  v1::ReadLogRequest request = Follow();
  request.set_offset(100);  // more than a server after a power failure has
  EXPECT_EQ(Read(request), "");
  EXPECT_EQ(next_, Follower::Next::kWait);
}

TEST_F(LogStreamTest, AFollowerOfALogWaitsForItAndForItsJobAndAnyoneElseForNothing) {
  Write(0, "first\n");
  EXPECT_EQ(Read(Follow()), "first\n");
  EXPECT_EQ(next_, Follower::Next::kWait);
  ASSERT_EQ(keys_.size(), 2u);
  EXPECT_EQ(keys_[0], job_);
  EXPECT_TRUE(keys_[1].starts_with("log/")) << keys_[1];
  int woken = 0;
  const auto subscription = hub_.Subscribe({keys_[1]}, [&] { ++woken; }).value();
  Write(6, "more\n");
  EXPECT_EQ(woken, 1);
  v1::ReadLogRequest request;
  request.set_name(job_);
  EXPECT_EQ(Read(request), "first\nmore\n");
  EXPECT_EQ(next_, Follower::Next::kEnd);
  EXPECT_TRUE(keys_.empty());
}

}  // namespace
}  // namespace sft::server
