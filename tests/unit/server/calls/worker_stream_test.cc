#include "common/base/version.h"
#include "tests/unit/server/rpc/raw_call.h"
#include "tests/unit/server/services/services_fixture.h"

namespace sft::server {
namespace {

TEST_F(ServicesTest, AWorkersStreamIsWelcomedAndToldItsDesiredSet) {
  grpc::ClientContext context;
  const auto stream = workers_->Session(&context);
  v1::WorkerMessage hello;
  v1::Register* node = hello.mutable_register_();
  node->set_node("a");
  node->set_incarnation("life-1");
  node->set_protocol(kProtocol);
  v1::Slot* slot = node->add_slots();
  slot->set_gpu_type("CPU");
  slot->set_healthy(true);
  // Listed: the server need not ask for it.
  v1::Model* model = node->add_models();
  model->set_id("tiny");
  model->set_path("/models/tiny");
  model->set_config_json(
      R"({"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_attention_heads":4,)"
      R"("num_hidden_layers":2,"vocab_size":256})");
  ASSERT_TRUE(stream->Write(hello));
  v1::ServerMessage message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ(message.welcome().refused(), "");
  EXPECT_GT(message.welcome().heartbeat_seconds(), 0);
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_TRUE(message.has_desired());
  v1::UploadBlobResponse uploaded;
  ASSERT_TRUE(Upload(kTwoRows, &uploaded).ok());
  v1::Job job;
  ASSERT_TRUE(Submit(kTwoRowJob, &job).ok());
  // The set may be told again before the job is placed.
  do {
    ASSERT_TRUE(stream->Read(&message));
  } while (message.desired().attempts_size() == 0);
  ASSERT_EQ(message.desired().attempts_size(), 1);
  EXPECT_EQ(message.desired().attempts(0).dispatch().files(0).sha256(), io::Sha256Hex(kTwoRows));
  context.TryCancel();
  (void)stream->Finish();
}

// A worker without GPU, registered and welcomed.
class SessionTest : public ServicesTest {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::WorkerMessage, v1::ServerMessage>;

  std::unique_ptr<Stream> Dial(grpc::ClientContext& context) {
    auto stream = workers_->Session(&context);
    v1::WorkerMessage hello;
    v1::Register* node = hello.mutable_register_();
    node->set_node("a");
    node->set_incarnation("life-1");
    node->set_protocol(kProtocol);
    v1::ServerMessage message;
    EXPECT_TRUE(stream->Write(hello) && stream->Read(&message));
    EXPECT_TRUE(message.has_welcome() && message.welcome().refused().empty());
    return stream;
  }
  // Of the next report that is answered.
  int64_t ReadAnswer(Stream& stream) {
    v1::ServerMessage message;
    while (stream.Read(&message)) {
      if (message.has_observed_answer()) return message.observed_answer().sequence();
    }
    return -1;
  }
};

// Those with an attempt or a model are stored, by other threads than the ones that are not.
TEST_F(SessionTest, ReportsAreAnsweredInTheirOrderWhetherTheyAreStoredOrNot) {
  constexpr int kReports = 60;
  grpc::ClientContext context;
  const auto stream = Dial(context);
  for (int i = 1; i <= kReports; ++i) {
    v1::WorkerMessage report;
    v1::Observed& observed = *report.mutable_observed();
    observed.set_sequence(i);
    if (i % 3 == 0) observed.add_attempts()->set_attempt_uid("unknown");
    if (i % 7 == 0) {
      v1::Model& model = *observed.add_models();
      model.set_id("tiny");
      model.set_path("/models/" + std::to_string(i));
    }
    ASSERT_TRUE(stream->Write(report));
  }
  for (int i = 1; i <= kReports; ++i) ASSERT_EQ(ReadAnswer(*stream), i);
  stream->WritesDone();
  EXPECT_EQ(ReadAnswer(*stream), -1);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(SessionTest, AStreamThatIsCancelledIsNoLongerConnected) {
  grpc::ClientContext context;
  const auto stream = Dial(context);
  EXPECT_EQ(server_->connected_workers(), 1);
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (server_->connected_workers() > 0) Clock::Real().Sleep(std::chrono::milliseconds(5));
}

TEST_F(SessionTest, AnotherStreamOfTheWorkerEndsTheFirst) {
  grpc::ClientContext first, second;
  const auto old = Dial(first);
  const auto stream = Dial(second);
  EXPECT_EQ(ReadAnswer(*old), -1);
  EXPECT_EQ(old->Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(server_->connected_workers(), 1);
  second.TryCancel();
  (void)stream->Finish();
}

TEST_F(SessionTest, ASecondRegisterAReportBeforeItAndWhatIsNoMessageEndTheStream) {
  v1::WorkerMessage again, early;
  again.mutable_register_()->set_node("a");
  early.mutable_observed()->set_sequence(1);
  {
    grpc::ClientContext context;
    const auto stream = Dial(context);
    ASSERT_TRUE(stream->Write(again));
    EXPECT_EQ(ReadAnswer(*stream), -1);
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  grpc::ClientContext context;
  const auto stream = workers_->Session(&context);
  ASSERT_TRUE(stream->Write(early));
  EXPECT_EQ(ReadAnswer(*stream), -1);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  // A tag of a kind that does not exist.
  const grpc::Slice bytes(std::string("\x0f\xff", 2));
  const grpc::Status status = CallRaw(server_->InProcessChannel(), "/sft.v1.WorkerService/Session",
                                      grpc::ByteBuffer(&bytes, 1));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
}

TEST_F(SessionTest, AServerThatStopsEndsTheStreams) {
  grpc::ClientContext context;
  const auto stream = Dial(context);
  server_.reset();
  EXPECT_EQ(ReadAnswer(*stream), -1);
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(ServicesTest, ARefusedWorkerIsToldWhyBeforeItsStreamEnds) {
  grpc::ClientContext context;
  const auto stream = workers_->Session(&context);
  v1::WorkerMessage hello;
  hello.mutable_register_()->set_node("a");
  hello.mutable_register_()->set_protocol(kProtocol + 1);
  ASSERT_TRUE(stream->Write(hello));
  v1::ServerMessage message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_NE(message.welcome().refused().find("upgrade the server first"), std::string::npos);
  EXPECT_FALSE(stream->Read(&message));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace sft::server
