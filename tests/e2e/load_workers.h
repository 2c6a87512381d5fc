#pragma once

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/version.h"
#include "sft/v1/worker_service.grpc.pb.h"
#include "tests/e2e/load_streams.h"

namespace sft {

// What all simulated workers did.
struct Counts {
  std::atomic<int64_t> connected{0}, dispatched{0}, answered{0}, broken{0};
  std::atomic<int64_t> first_ns{0}, last_ns{0};
};

// One node of simulated GPUs, which ends at once what it is given or, of kind `keeps`, never. The
// library calls its reactions one at a time; heartbeats and points come from outside.
class SimulatedWorker final : public grpc::ClientBidiReactor<v1::WorkerMessage, v1::ServerMessage> {
 public:
  struct Kind {
    std::string name = "sim";
    std::string gpu_type = "H100";
    bool keeps = false;
  };
  SimulatedWorker(const std::string& address, const Kind& kind, int number, int slots,
                  Counts& counts)
      : stub_(v1::WorkerService::NewStub(Dial(address, number))),
        node_(fmt::format("{}-{:04}", kind.name, number)),
        keeps_(kind.keeps),
        counts_(counts) {
    v1::WorkerMessage hello;
    v1::Register& message = *hello.mutable_register_();
    message.set_node(node_);
    message.set_incarnation(incarnation_);
    message.set_data_dir_id(fmt::format("{}-{}", kind.name, number));
    message.set_version(kVersion);
    message.set_protocol(kProtocol);
    message.set_hostname("sim");
    message.set_simulated(true);
    message.set_cpus(8);
    message.set_memory_bytes(int64_t{1} << 38);
    message.set_address("127.0.0.1");
    for (int i = 0; i < slots; ++i) {
      v1::Slot& slot = *message.add_slots();
      slot.set_index(i);
      slot.set_gpu_type(kind.gpu_type);
      slot.set_product_name(kind.gpu_type + " (simulated)");
      slot.set_uuid(fmt::format("GPU-{}-{}-{}", kind.name, number, i));
      slot.set_memory_bytes(int64_t{80} << 30);
      slot.set_healthy(true);
    }
    v1::Model& model = *message.add_models();
    model.set_id("tiny");
    model.set_path("/models/tiny");
    model.set_config_json(kConfig);
    model.set_hash("0");
    slots_ = message.slots();
    stub_->async()->Session(&context_, this);
    AddHold();  // writes come from outside the reactions, too
    StartCall();
    Send(std::move(hello));
    StartRead(&incoming_);
  }

  void Heartbeat() {
    {
      const MutexLock lock(mutex_);
      if (!welcomed_ || done_) return;
    }
    Report(keeps_ ? v1::AttemptStatus::RUNNING : v1::AttemptStatus::DONE);
  }
  // Sends a point of each of its attempts, told at the time at which it is sent; how many there
  // were, and how many the server did not take.
  std::pair<int, int> SendPoints() {
    std::map<std::string, int64_t> attempts;
    {
      const MutexLock lock(mutex_);
      attempts = attempts_;
    }
    ++step_;
    int refused = 0;
    for (const auto& [uid, epoch] : attempts) {
      refused += SendPoint(uid, epoch) ? 0 : 1;
    }
    return {static_cast<int>(attempts.size()), refused};
  }
  void Stop() {
    context_.TryCancel();
    RemoveHold();
    const MutexLock lock(mutex_);
    while (!done_) changed_.WaitFor(mutex_, std::chrono::seconds(10));
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (incoming_.has_welcome()) {
      const bool accepted = incoming_.welcome().refused().empty();
      if (!accepted) fmt::print(stderr, "refused: {}\n", incoming_.welcome().refused());
      counts_.connected += accepted ? 1 : 0;
      const MutexLock lock(mutex_);
      welcomed_ = accepted;
    } else if (incoming_.has_desired()) {
      Take(incoming_.desired());
    } else if (incoming_.has_observed_answer()) {
      ++counts_.answered;
    }
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    const MutexLock lock(mutex_);
    queue_.pop_front();
    if (!ok) queue_.clear();
    if (!queue_.empty()) StartWrite(&queue_.front());
  }
  void OnDone(const grpc::Status& status) override {
    const MutexLock lock(mutex_);
    if (status.error_code() != grpc::StatusCode::CANCELLED) ++counts_.broken;
    done_ = true;
    changed_.NotifyAll();
  }

 private:
  static constexpr char kConfig[] =
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
 "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
 "num_hidden_layers": 2, "vocab_size": 256, "max_position_embeddings": 256,
 "rms_norm_eps": 1e-5, "tie_word_embeddings": true})";

  void Send(v1::WorkerMessage message) {
    const MutexLock lock(mutex_);
    if (done_) return;
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

  // What is dispatched runs and is done at once, and is forgotten when it shall be.
  void Take(const v1::Desired& desired) {
    bool news = false, runs = false;
    {
      const MutexLock lock(mutex_);
      for (const v1::DesiredAttempt& attempt : desired.attempts()) {
        const bool known = attempts_.contains(attempt.attempt_uid());
        if (attempt.intent() == v1::DesiredAttempt::FORGET) {
          news = attempts_.erase(attempt.attempt_uid()) > 0 || news;
        } else if (!known && attempt.has_dispatch()) {
          attempts_[attempt.attempt_uid()] = attempt.epoch();
          runs = news = true;
          const int64_t now = Clock::Real().Mono().time_since_epoch().count();
          int64_t first = 0;
          counts_.first_ns.compare_exchange_strong(first, now);
          counts_.last_ns = now;
          ++counts_.dispatched;
        }
      }
    }
    if (runs) Report(v1::AttemptStatus::RUNNING);
    if (news && !keeps_) Report();
  }

  bool SendPoint(const std::string& uid, int64_t epoch) {
    v1::AppendEventsRequest request;
    request.set_attempt_uid(uid);
    request.set_epoch(epoch);
    request.set_node(node_);
    int64_t& offset = offsets_[uid];
    request.set_begin_offset(offset);
    request.set_end_offset(offset + 1);
    v1::Metric& point = *request.add_events()->mutable_metric();
    point.set_step(step_);
    point.set_total_steps(1'000'000);
    point.set_loss(1 + 1 / static_cast<double>(step_));
    point.set_lr(1e-4);
    point.set_grad_norm(1);
    point.set_tokens(8192);
    point.set_tokens_per_second(8192);
    point.set_step_seconds(1);
    const int64_t now_us = UnixMicros(Clock::Real().Wall());
    point.mutable_time()->set_seconds(now_us / 1'000'000);
    point.mutable_time()->set_nanos(static_cast<int32_t>(now_us % 1'000'000) * 1000);
    grpc::ClientContext context;
    context.AddMetadata(rpc::kIncarnationKey, incarnation_);
    rpc::SetDeadline(context, rpc::kUnaryDeadline);
    v1::AppendEventsResponse response;
    const grpc::Status status = stub_->AppendEvents(&context, request, &response);
    if (!status.ok()) fmt::print(stderr, "a point: {}\n", status.error_message());
    const bool taken = status.ok() && response.offset() == offset + 1;
    if (status.ok()) offset = response.offset();
    return taken;
  }

  void Report(v1::AttemptStatus::State state = v1::AttemptStatus::DONE) {
    v1::WorkerMessage message;
    v1::Observed& observed = *message.mutable_observed();
    *observed.mutable_slots() = slots_;
    observed.set_time_us(UnixMicros(Clock::Real().Wall()));
    {
      const MutexLock lock(mutex_);
      observed.set_sequence(++sequence_);
      for (const auto& [uid, epoch] : attempts_) {
        v1::AttemptStatus& status = *observed.add_attempts();
        status.set_attempt_uid(uid);
        status.set_epoch(epoch);
        status.set_state(state);
        if (state != v1::AttemptStatus::DONE) continue;
        status.mutable_verdict()->set_domain(v1::Verdict::NONE);
        status.mutable_verdict()->set_code("succeeded");
      }
    }
    Send(std::move(message));
  }

  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  const std::string node_, incarnation_ = RandomUuid();
  const bool keeps_;
  Counts& counts_;
  int64_t step_ = 0;                        // of the points; of the one thread that sends them
  std::map<std::string, int64_t> offsets_;  // likewise, by attempt
  grpc::ClientContext context_;
  v1::ServerMessage incoming_;
  google::protobuf::RepeatedPtrField<v1::Slot> slots_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::WorkerMessage> queue_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> attempts_ SFT_GUARDED_BY(mutex_);
  int64_t sequence_ SFT_GUARDED_BY(mutex_) = 0;
  bool welcomed_ SFT_GUARDED_BY(mutex_) = false;
  bool done_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft
