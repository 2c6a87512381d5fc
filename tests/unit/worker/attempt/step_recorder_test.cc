#include "worker/attempt/step_recorder.h"

#include <gmock/gmock.h>

#include <functional>

#include "common/data/gzip_parts.h"
#include "tests/unit/worker/base/test_node.h"
#include "tests/unit/worker/transfer/fake_server.h"
#include "worker/channel/step_table.h"

namespace sft::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kUid[] = "attempt-bcdfghjkmn";

// One shim, whose ranks do what the test says when they are told to record.
class FakeShim : public ShimHost {
 public:
  absl::Status Start(const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<channel::Answer> Ask(const std::string& socket_path,
                                      const channel::Command& command) override {
    sockets.push_back(socket_path);
    if (!reachable) return Unavailable("nobody answers");
    if (command.command == "profile") {
      asked = command;
      on_profile();
    }
    return answer;
  }
  bool Alive(const channel::ShimStatus&) override { return true; }

  bool reachable = true;
  channel::Answer answer{.ok = true, .error = {}, .status = {.state = "running"}};
  channel::Command asked;
  std::function<void()> on_profile = [] {};
  std::vector<std::string> sockets;
};

// What the server gets, piece by piece. Thread-safe.
class PiecesServer : public FakeServer {
 public:
  struct Answer {
    std::vector<v1::RecordedPiece> pieces;  // without those that only say what is waited for
    int waits = 0;
    bool ended = false;
    std::string error;
  };

  absl::Status SendLines(const std::string& request, const NextLine& next) override {
    absl::StatusOr<std::string> bytes = next();
    for (; bytes.ok() && !bytes->empty(); bytes = next()) {
      v1::RecordedPiece piece;
      EXPECT_TRUE(piece.ParseFromString(*bytes));
      const MutexLock lock(mutex_);
      Answer& answer = answers_[request];
      piece.waiting().empty() ? answer.pieces.push_back(piece) : void(++answer.waits);
      if (hangs_up) return NotFound("nobody wants it");
    }
    const MutexLock lock(mutex_);
    answers_[request].error = Message(bytes.status());
    answers_[request].ended = true;
    return absl::OkStatus();
  }
  Answer Get(const std::string& request) {
    const MutexLock lock(mutex_);
    return answers_[request];
  }
  // The whole answer.
  Answer Await(const std::string& request) {
    while (!Get(request).ended) Clock::Real().Sleep(std::chrono::milliseconds(1));
    return Get(request);
  }

  std::atomic<bool> hangs_up = false;  // after a piece

 private:
  Mutex mutex_;
  std::map<std::string, Answer> answers_ SFT_GUARDED_BY(mutex_);
};

class StepRecorderTest : public TestNode {
 protected:
  void SetUp() override {
    TestNode::SetUp();
    ASSERT_TRUE(io::MakeDirs(AttemptDir()).ok());
    for (const int rank : {0, 1}) {
      shim_.answer.status.processes.push_back(
          {.name = "rank-" + std::to_string(rank), .rank = rank, .pid = 1});
    }
  }

  std::string AttemptDir() const { return setup_.AttemptDir(kUid); }
  // What a rank that has recorded leaves.
  void Leave(int rank, const channel::StepTable& table, const std::string& trace) {
    const std::string dir = channel::RecordingFolder(AttemptDir(), shim_.asked.id, rank);
    EXPECT_TRUE(io::IsDirectory(dir)) << dir;
    EXPECT_TRUE(io::WriteFileAtomic(dir + "/trace", trace).ok());
    EXPECT_TRUE(io::WriteFileAtomic(dir + "/table.json", channel::ToJson(table)).ok());
  }
  void Leave(int rank, const std::string& trace) {
    Leave(rank,
          {.rank = rank,
           .device = "cpu",
           .first_step = 5,
           .steps = 3,
           .seconds = 0.5,
           .shares = {{"host", 0.5}},
           .crc32 = 7,
           .text_bytes = 70,
           .trace_bytes = static_cast<int64_t>(trace.size())},
          trace);
  }
  static v1::RecordSteps Request(const std::string& name, const std::vector<int>& ranks) {
    v1::RecordSteps request;
    request.set_request(name);
    request.set_attempt_uid(kUid);
    request.set_steps(3);
    for (const int rank : ranks) request.add_ranks(rank);
    return request;
  }
  PiecesServer::Answer Record(const std::vector<int>& ranks, const std::string& uid = kUid) {
    const std::string name = "record-" + std::to_string(++requests_);
    v1::RecordSteps request = Request(name, ranks);
    request.set_attempt_uid(uid);
    StepRecorder recorder(setup_, server_, shim_, Clock::Real());
    recorder.Record(request);
    return server_.Await(name);
  }
  std::string Error(const std::vector<int>& ranks, const std::string& uid = kUid) {
    const PiecesServer::Answer answer = Record(ranks, uid);
    EXPECT_THAT(answer.pieces, IsEmpty());
    EXPECT_THAT(Left(), IsEmpty());
    return answer.error;
  }
  // Recordings that lie in the attempt's folder.
  std::vector<std::string> Left() const {
    std::vector<std::string> left = io::ListDir(AttemptDir()).value();
    std::erase_if(left, [](const std::string& name) { return !name.starts_with("profile-"); });
    return left;
  }

  PiecesServer server_;
  FakeShim shim_;
  int requests_ = 0;
};

TEST_F(StepRecorderTest, TablesAreSentBeforeTracesAndNothingIsLeft) {
  const std::string large(3 << 20, 'x');
  shim_.on_profile = [&] {
    Leave(0, "trace of 0");
    Leave(1, large);
  };
  const std::vector<v1::RecordedPiece> pieces = Record({0, 1}).pieces;
  ASSERT_GE(pieces.size(), 5u);
  EXPECT_EQ(pieces[0].rank().rank(), 0);
  EXPECT_EQ(pieces[1].rank().rank(), 1);
  EXPECT_EQ(pieces[1].rank().shares(0).kind(), "host");
  EXPECT_EQ(pieces[1].trace_crc32(), 7u);
  EXPECT_EQ(pieces[1].trace_text_bytes(), 70);
  std::string traces;
  for (size_t i = 2; i < pieces.size(); ++i) traces += pieces[i].trace();
  EXPECT_TRUE(traces == "trace of 0" + large);
  EXPECT_EQ(shim_.asked.steps, 3);
  EXPECT_EQ(shim_.sockets.front(), setup_.data_dir + "/run/" + kUid + ".sock");
  EXPECT_THAT(Left(), IsEmpty());
}

TEST_F(StepRecorderTest, WhatAnEarlierLifeOfTheWorkerLeftIsRemoved) {
  Write(AttemptDir() + "/profile-record-old/rank-0/trace", "half");
  shim_.on_profile = [&] {
    EXPECT_THAT(Left(), ElementsAre("profile-" + shim_.asked.id));
    Leave(0, "t");
  };
  EXPECT_EQ(Record({0}).pieces.size(), 2u);
  EXPECT_THAT(Left(), IsEmpty());
}

TEST_F(StepRecorderTest, WhatARankCouldNotDoIsSaid) {
  shim_.on_profile = [&] { Leave(0, {.error = "the training ended before another step"}, ""); };
  EXPECT_THAT(Error({0}), HasSubstr("rank 0: the training ended before another step"));
}

TEST_F(StepRecorderTest, ATableOfAnotherRankOrATraceThatIsTooShortIsAnError) {
  shim_.on_profile = [&] { Leave(0, {.rank = 1}, ""); };
  EXPECT_THAT(Error({0}), HasSubstr("not one of its own recording"));
  shim_.on_profile = [&] { Leave(0, {.rank = 0, .trace_bytes = data::kMostTraceBytes + 1}, ""); };
  EXPECT_THAT(Error({0}), HasSubstr("not one of its own recording"));
  shim_.on_profile = [&] { Leave(0, {.rank = 0, .trace_bytes = 100}, "short"); };
  const PiecesServer::Answer answer = Record({0});
  EXPECT_EQ(answer.pieces.size(), 1u) << "the table";
  EXPECT_THAT(answer.error, HasSubstr("shorter than its table says"));
  EXPECT_THAT(Left(), IsEmpty());
}

TEST_F(StepRecorderTest, ARankThatEndsWithoutATableIsNotWaitedFor) {
  shim_.on_profile = [&] { shim_.answer.status.processes[1].exited = true; };
  EXPECT_THAT(Error({1}), HasSubstr("rank 1 ended before its steps were recorded"));
  // One that had written it before is.
  shim_.on_profile = [&] { Leave(1, "last"); };
  EXPECT_EQ(Record({1}).pieces.size(), 2u);
}

TEST_F(StepRecorderTest, AnAttemptThatIsNotHereOrDoesNotRunIsSaid) {
  EXPECT_THAT(Error({0}, "../../etc"), HasSubstr("no attempt"));
  EXPECT_THAT(Error({0}, "attempt-zzzzzzzzzz"), HasSubstr("the job does not run here"));
  shim_.answer.status.state = "preparing";
  EXPECT_THAT(Error({0}), HasSubstr("processes are preparing"));
  shim_.answer = {.ok = false, .error = "unknown command \"profile\"", .status = {}};
  EXPECT_THAT(Error({0}), HasSubstr("a release that records no steps"));
  shim_.reachable = false;
  EXPECT_THAT(Error({0}), HasSubstr("nobody answers"));
}

TEST_F(StepRecorderTest, AnotherRecordingOfTheAttemptIsRefusedAndTheWorkersEndEndsTheFirst) {
  std::atomic<bool> begun = false;
  shim_.on_profile = [&] { begun = true; };
  {
    StepRecorder recorder(setup_, server_, shim_, Clock::Real());
    recorder.Record(Request("first", {0}));
    while (!begun) Clock::Real().Sleep(std::chrono::milliseconds(1));
    recorder.Record(Request("second", {0}));
    EXPECT_THAT(server_.Await("second").error, HasSubstr("recorded already"));
    EXPECT_EQ(Left().size(), 1u) << "the first goes on";
  }
  EXPECT_THAT(server_.Await("first").error, HasSubstr("the worker ends"));
  EXPECT_THAT(Left(), IsEmpty());
}

TEST_F(StepRecorderTest, ARecordingThatNobodyWaitsForEndsAndTheAttemptIsFree) {
  server_.hangs_up = true;
  StepRecorder recorder(setup_, server_, shim_, Clock::Real());
  recorder.Record(Request("left", {0}));
  while (server_.Get("left").waits == 0) Clock::Real().Sleep(std::chrono::milliseconds(1));
  server_.hangs_up = false;
  shim_.on_profile = [&] { Leave(0, "t"); };
  recorder.Record(Request("next", {0}));
  EXPECT_EQ(server_.Await("next").error, "");
}

}  // namespace
}  // namespace sft::worker
