#include "worker/daemon/session.h"

#include <atomic>
#include <deque>

#include "common/base/version.h"
#include "common/rpc/channel.h"
#include "common/rpc/server_options.h"
#include "tests/unit/worker/base/test_node.h"
#include "tests/unit/worker/transfer/fake_server.h"

namespace sft::worker {
namespace {

// The server's end of the stream: records what it receives, in order, for the test to wait on.
class StreamServer : public v1::WorkerService::Service {
 public:
  grpc::Status Session(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::ServerMessage, v1::WorkerMessage>* stream) override {
    v1::ServerMessage welcome;
    {
      const MutexLock lock(mutex_);
      context_ = context;
      welcome.mutable_welcome()->set_server_version(kVersion);
      welcome.mutable_welcome()->set_protocol(kProtocol);
      welcome.mutable_welcome()->set_heartbeat_seconds(30);
      welcome.mutable_welcome()->set_refused(refusal_);
      welcome.mutable_welcome()->set_replaced(replaced_);
      welcome.mutable_welcome()->set_answers_observed(true);
    }
    v1::WorkerMessage message;
    while (stream->Read(&message)) {
      if (message.has_register_()) {
        stream->Write(welcome);
        if (welcome.welcome().refused().empty()) {
          v1::ServerMessage desired;
          const MutexLock lock(mutex_);
          *desired.mutable_desired() = desired_;
          stream->Write(desired);
        }
      }
      const MutexLock lock(mutex_);
      if (message.has_observed() && answers_) {
        v1::ServerMessage answer;
        answer.mutable_observed_answer()->set_sequence(message.observed().sequence());
        stream->Write(answer);
        // The worker's next report shows that it has read the answer.
        answer.mutable_desired()->add_attempts()->set_attempt_uid("a-9");
        answer.mutable_desired()->mutable_attempts(0)->set_intent(v1::DesiredAttempt::STOP);
        stream->Write(answer);
      }
      got_.push_back(message);
      changed_.NotifyAll();
    }
    return grpc::Status::OK;
  }

  v1::WorkerMessage Next() {
    const MutexLock lock(mutex_);
    while (got_.empty()) changed_.Wait(mutex_);
    v1::WorkerMessage message = std::move(got_.front());
    got_.pop_front();
    return message;
  }
  void Break() {
    const MutexLock lock(mutex_);
    context_->TryCancel();
  }
  void Desire(const v1::Desired& desired) {
    const MutexLock lock(mutex_);
    desired_ = desired;
  }
  void Answer(bool answers) {
    const MutexLock lock(mutex_);
    answers_ = answers;
  }
  void Refuse(const std::string& why, bool replaced = false) {
    const MutexLock lock(mutex_);
    refusal_ = why;
    replaced_ = replaced;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::WorkerMessage> got_;
  v1::Desired desired_;
  std::string refusal_;
  bool replaced_ = false;
  bool answers_ = false;
  grpc::ServerContext* context_ = nullptr;
};

// Advances by a second at each look, from any thread.
class TickingClock : public Clock {
 public:
  WallTime Wall() const override { return WallTime(); }
  MonoTime Mono() const override { return MonoTime(std::chrono::seconds(1'000 + ++looks_)); }
  void Sleep(Nanos) override {}

 private:
  mutable std::atomic<int> looks_ = 0;
};

class SessionTest : public TestNode {
 protected:
  void SetUp() override {
    TestNode::SetUp();
    grpc::ServerBuilder builder;
    rpc::SetServerOptions(builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    grpc_server_ = builder.BuildAndStart();
    ASSERT_NE(grpc_server_, nullptr);
    session_ = std::make_unique<Session>(
        [channel = rpc::MakeChannel("127.0.0.1:" + std::to_string(port))] { return channel; },
        agent_,
        [] {
          v1::Register message;
          message.set_node("node-a");
          return message;
        },
        [](const v1::FetchFile&) {}, Session::OnModelRequest(), Session::OnAsk(),
        [this](const v1::Welcome& welcome) {
          return welcome.generation() < obeyed_ ? FailedPrecondition("that server was replaced")
                                                : absl::OkStatus();
        },
        [this] { ++lost_; });
  }
  void TearDown() override {
    session_->Stop();
    grpc_server_->Shutdown(std::chrono::system_clock::time_point());
    TestNode::TearDown();
  }

  std::atomic<int64_t> obeyed_ = 0;
  std::atomic<int> lost_ = 0;  // streams that ended
  TickingClock clock_;
  FakeServer calls_;
  Stager stager_{setup_, calls_};
  Inventory inventory_{[] { return std::vector<GpuReading>(); }, {}, 1, clock_};
  ShimProcesses shims_{SFT_BINARY_DIR "/bin/sft-shim"};
  Agent agent_{{.io_threads = false}, setup_, stager_, inventory_, calls_, shims_, clock_, [] {
                 return absl::StatusOr<std::string>("");
               }};
  StreamServer service_;
  std::unique_ptr<grpc::Server> grpc_server_;
  std::unique_ptr<Session> session_;
};

TEST_F(SessionTest, RegistersAndThenReportsWhatItObserves) {
  session_->Start();
  EXPECT_EQ(service_.Next().register_().node(), "node-a");
  EXPECT_EQ(service_.Next().observed().slots_size(), 1);
}

TEST_F(SessionTest, TheDesiredSetReachesTheAgent) {
  v1::Desired desired;
  desired.add_attempts()->set_attempt_uid("a-7");
  desired.mutable_attempts(0)->set_intent(v1::DesiredAttempt::RUN);
  service_.Desire(desired);
  session_->Start();
  service_.Next();
  for (v1::Observed observed; observed.attempts_size() == 0;) {
    agent_.WaitForStep(agent_.Step());
    const v1::WorkerMessage message = service_.Next();
    observed = message.observed();
    if (observed.attempts_size() > 0) {
      EXPECT_EQ(observed.attempts(0).state(), v1::AttemptStatus::MISSING);
    }
  }
}

TEST_F(SessionTest, OnlyReportsThatTheServerAnsweredCountAsHeard) {
  EXPECT_EQ(agent_.Heard(), MonoTime{});
  session_->Start();
  service_.Next();
  EXPECT_TRUE(service_.Next().has_observed());
  const MonoTime registered = agent_.Heard();
  EXPECT_GT(registered, MonoTime{}) << "its Register was welcomed";
  agent_.NotifyChange();
  EXPECT_TRUE(service_.Next().has_observed());
  EXPECT_EQ(agent_.Heard(), registered) << "sent, and nobody answered";
  service_.Answer(true);
  agent_.NotifyChange();
  for (v1::Observed observed; observed.attempts_size() == 0;) {
    observed = service_.Next().observed();
    agent_.WaitForStep(agent_.Step());
  }
  EXPECT_GT(agent_.Heard(), registered);
}

TEST_F(SessionTest, ABrokenStreamIsOpenedAgainAndRegistersAgain) {
  session_->Start();
  EXPECT_TRUE(service_.Next().has_register_());
  EXPECT_TRUE(service_.Next().has_observed());
  service_.Break();
  v1::WorkerMessage message = service_.Next();
  while (!message.has_register_()) message = service_.Next();
  EXPECT_EQ(message.register_().node(), "node-a");
}

TEST_F(SessionTest, ARefusedWorkerTriesAgainLaterAndReportsNothing) {
  service_.Refuse("worker node-a speaks protocol 9");
  session_->Start();
  EXPECT_TRUE(service_.Next().has_register_());
  EXPECT_TRUE(service_.Next().has_register_()) << "the second try, not an observation";
}

TEST_F(SessionTest, AServerThatWasReplacedGetsNoReportsAndItsWishesAreNotHeard) {
  obeyed_ = 1;
  v1::Desired desired;
  desired.add_attempts()->set_attempt_uid("a-7");
  service_.Desire(desired);
  session_->Start();
  EXPECT_TRUE(service_.Next().has_register_());
  EXPECT_TRUE(service_.Next().has_register_()) << "the second try, not an observation";
  EXPECT_GE(lost_, 1) << "the next dial may go elsewhere";
  agent_.Step();
  uint64_t models_since = 0;
  EXPECT_EQ(agent_.Observe(models_since).attempts_size(), 0);
  EXPECT_EQ(agent_.Heard(), MonoTime{});
}

TEST_F(SessionTest, StopEndsAQuietStream) {
  session_->Start();
  service_.Next();
  session_->Stop();
}

}  // namespace
}  // namespace sft::worker
