// The other side of a version mismatch, for trouble_test.py and upgrade_test.py; its version is
// 9.9.9:
//
//   serve PORT PROTOCOL      a server of PROTOCOL - 1 and PROTOCOL that refuses every worker
//   register PORT PROTOCOL   a worker that prints how the server answers its Register
//   work PORT PROTOCOL       a worker that runs one job of one rank as the first release's did: it
//                            knows no field that came later; prints the job as it was sent
//   read PORT PROTOCOL       a client of the first release: waits for the newest job and follows
//   its log

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "sft/v1/cluster_service.grpc.pb.h"
#include "sft/v1/job_service.grpc.pb.h"
#include "sft/v1/worker_service.grpc.pb.h"

namespace sft {
namespace {

constexpr char kOtherVersion[] = "9.9.9";

class OtherCluster final : public v1::ClusterService::Service {
 public:
  explicit OtherCluster(int protocol) : protocol_(protocol) {}

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::ServerInfo* response) override {
    response->set_version(kOtherVersion);
    response->set_protocol(protocol_);
    response->set_min_protocol(std::max(0, protocol_ - 1));
    return grpc::Status::OK;
  }

 private:
  const int protocol_;
};

class OtherWorkers final : public v1::WorkerService::Service {
 public:
  explicit OtherWorkers(int protocol) : protocol_(protocol) {}

  grpc::Status Session(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::ServerMessage, v1::WorkerMessage>* stream) override {
    v1::WorkerMessage hello;
    if (!stream->Read(&hello)) return grpc::Status::CANCELLED;
    const v1::Register& worker = hello.register_();
    v1::ServerMessage answer;
    v1::Welcome& welcome = *answer.mutable_welcome();
    welcome.set_server_version(kOtherVersion);
    welcome.set_protocol(protocol_);
    welcome.set_refused(
        fmt::format("worker {} {} speaks protocol {}, this server {} serves {} to {}: upgrade "
                    "worker {}",
                    worker.node(), worker.version(), worker.protocol(), kOtherVersion,
                    protocol_ - 1, protocol_, worker.node()));
    stream->Write(answer);
    return grpc::Status::OK;
  }

 private:
  const int protocol_;
};

int Serve(const std::string& address, int protocol) {
  OtherCluster cluster(protocol);
  OtherWorkers workers(protocol);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&cluster);
  builder.RegisterService(&workers);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  fmt::print("listening\n");
  fflush(stdout);
  server->Wait();
  return 0;
}

int Register(const std::string& address, int protocol) {
  const auto stub =
      v1::WorkerService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto stream = stub->Session(&context);
  v1::WorkerMessage hello;
  v1::Register& worker = *hello.mutable_register_();
  worker.set_node("stranger");
  worker.set_incarnation("1");
  worker.set_version(kOtherVersion);
  worker.set_protocol(protocol);
  v1::ServerMessage answer;
  const bool answered = stream->Write(hello) && stream->Read(&answer) && answer.has_welcome();
  if (answered) fmt::print("refused: {}\n", answer.welcome().refused());
  context.TryCancel();
  (void)stream->Finish();
  return answered ? 0 : 1;
}

// One attempt in the words of the first release.
class OlderWorker {
 public:
  explicit OlderWorker(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::WorkerService::NewStub(channel)), stream_(stub_->Session(&context_)) {}

  int Run(int protocol) {
    v1::WorkerMessage hello;
    v1::Register& worker = *hello.mutable_register_();
    worker.set_node("older");
    worker.set_incarnation("1");
    worker.set_version(kOtherVersion);
    worker.set_protocol(protocol);
    v1::Slot* slot = worker.add_slots();
    slot->set_gpu_type("H100");
    slot->set_healthy(true);
    v1::Model* model = worker.add_models();
    model->set_id("tiny");
    model->set_path("/models/tiny");
    model->set_config_json(R"({"model_type":"llama","hidden_size":64,"intermediate_size":128,)"
                           R"("num_attention_heads":4,"num_hidden_layers":2,"vocab_size":256})");
    stream_->Write(hello);
    v1::ServerMessage message;
    while (stream_->Read(&message)) {
      if (!message.welcome().refused().empty()) break;
      for (const v1::DesiredAttempt& attempt : message.desired().attempts()) {
        if (attempt.intent() == v1::DesiredAttempt::FORGET) return Finish();
        if (attempt.has_dispatch()) Work(attempt);
      }
    }
    context_.TryCancel();
    (void)stream_->Finish();
    return 1;
  }

 private:
  int Finish() {
    stream_->Write(EmptyObserved());
    fmt::print("forgotten\n");
    context_.TryCancel();
    (void)stream_->Finish();
    return 0;
  }
  static v1::WorkerMessage EmptyObserved() {
    v1::WorkerMessage message;
    message.mutable_observed();
    return message;
  }
  void Report(const v1::DesiredAttempt& attempt, v1::AttemptStatus::State state) {
    v1::WorkerMessage message;
    v1::AttemptStatus& status = *message.mutable_observed()->add_attempts();
    status.set_attempt_uid(attempt.attempt_uid());
    status.set_epoch(attempt.epoch());
    status.set_state(state);
    status.set_rendezvous("127.0.0.1:1");
    if (state >= v1::AttemptStatus::FINISHING) {
      status.mutable_verdict()->set_domain(v1::Verdict::NONE);
      status.mutable_verdict()->set_code("succeeded");
      status.mutable_verdict()->set_rank(-1);
    }
    stream_->Write(message);
  }
  void Work(const v1::DesiredAttempt& attempt) {
    fmt::print("job {}\n", attempt.dispatch().resolved_json());
    for (const auto state : {v1::AttemptStatus::READY, v1::AttemptStatus::RUNNING}) {
      Report(attempt, state);
    }
    v1::AppendLogRequest log;
    log.set_attempt_uid(attempt.attempt_uid());
    log.set_epoch(attempt.epoch());
    log.set_node("older");
    log.set_data("written by an older worker\n");
    log.set_end_of_file(true);
    v1::AppendEventsRequest events;
    events.set_attempt_uid(attempt.attempt_uid());
    events.set_epoch(attempt.epoch());
    events.set_node("older");
    events.set_end_offset(10);
    v1::Metric& metric = *events.add_events()->mutable_metric();
    metric.set_step(1);
    metric.set_loss(1.5);
    grpc::ClientContext log_context, events_context;
    v1::AppendLogResponse log_answer;
    v1::AppendEventsResponse events_answer;
    const bool taken = stub_->AppendLog(&log_context, log, &log_answer).ok() &&
                       stub_->AppendEvents(&events_context, events, &events_answer).ok();
    if (!taken) fmt::print("the server refused a report\n");
    Report(attempt, v1::AttemptStatus::FINISHING);
    Report(attempt, v1::AttemptStatus::DONE);
  }

  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::ServerMessage>> stream_;
};

int Work(const std::string& address, int protocol) {
  return OlderWorker(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))
      .Run(protocol);
}

int Read(const std::string& address, int protocol) {
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  const auto cluster = v1::ClusterService::NewStub(channel);
  const auto jobs = v1::JobService::NewStub(channel);
  grpc::ClientContext info_context, list_context, log_context;
  v1::GetServerInfoRequest question;
  question.set_client_protocol(protocol);
  v1::ServerInfo info;
  if (!cluster->GetServerInfo(&info_context, question, &info).ok()) return 1;
  if (protocol < info.min_protocol() || protocol > info.protocol()) return 1;
  v1::ListJobsResponse list;
  if (!jobs->ListJobs(&list_context, {}, &list).ok() || list.jobs_size() == 0) return 1;
  v1::ReadLogRequest request;
  request.set_name(list.jobs(0).name());
  request.set_follow(true);
  const auto reader = jobs->ReadLog(&log_context, request);
  v1::ReadLogResponse response;
  bool ended = false;
  while (reader->Read(&response)) {
    fmt::print("{}", response.data());
    ended = ended || response.end_of_file();
  }
  return reader->Finish().ok() && ended ? 0 : 1;
}

int Main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string command = argv[1], address = fmt::format("127.0.0.1:{}", argv[2]);
  const int protocol = std::stoi(argv[3]);
  if (command == "serve") return Serve(address, protocol);
  if (command == "register") return Register(address, protocol);
  if (command == "work") return Work(address, protocol);
  if (command == "read") return Read(address, protocol);
  return 2;
}

}  // namespace
}  // namespace sft

int main(int argc, char** argv) { return sft::Main(argc, argv); }
