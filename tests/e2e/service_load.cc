// The clients of tests/bench/service_load.py: loads a server from one process and prints lines of
// JSON.
//
//   sft-service-load ADDRESS submit JOB_FILE DATA_FILE RATE SECONDS
//   sft-service-load ADDRESS workers COUNT SLOTS SECONDS
//   sft-service-load ADDRESS follow JOB COUNT SECONDS
//   sft-service-load ADDRESS watch JOB COUNT SECONDS
//   sft-service-load ADDRESS list COUNT
//
// submit keeps to its rate whatever the server does: a latency counts from the moment at which the
// submit was due. workers are registered nodes that report each 5 s and end at once what they are
// given. follow reads one log with so many streams. watch watches one job with so many, while
// nothing happens, then cancels it: a latency counts from before the cancel to when a watcher
// knows.

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/version.h"
#include "common/rpc/channel.h"
#include "sft/v1/job_service.grpc.pb.h"
#include "sft/v1/worker_service.grpc.pb.h"
#include "tests/e2e/load_streams.h"
#include "tests/e2e/submit_request.h"

namespace sft {
namespace {

constexpr std::chrono::seconds kHeartbeat{5};
constexpr std::chrono::seconds kDeadline{20};
constexpr int kSubmitThreads = 32;

Clock& TheClock() { return Clock::Real(); }

double Millis(Nanos time) { return static_cast<double>(time.count()) / 1e6; }

// Values in milliseconds, of any thread.
class Latencies {
 public:
  void Add(Nanos time) {
    const MutexLock lock(mutex_);
    values_.push_back(Millis(time));
  }
  std::string Json() {
    std::vector<double> values;
    {
      const MutexLock lock(mutex_);
      values = values_;
    }
    std::sort(values.begin(), values.end());
    const auto at = [&](double share) {
      if (values.empty()) return 0.0;
      return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
    };
    return fmt::format("\"count\": {}, \"p50_ms\": {:.3f}, \"p99_ms\": {:.3f}, \"max_ms\": {:.3f}",
                       values.size(), at(0.5), at(0.99), at(1));
  }

 private:
  Mutex mutex_;
  std::vector<double> values_ SFT_GUARDED_BY(mutex_);
};

int Submit(const std::string& address, const std::string& job_file, const std::string& data_file,
           double rate, double seconds) {
  const absl::StatusOr<v1::SubmitJobRequest> request = MakeSubmitRequest(job_file, data_file);
  if (!request.ok()) {
    fmt::print(stderr, "{}\n", Message(request.status()));
    return 2;
  }
  const auto stub = v1::JobService::NewStub(Dial(address, 0));
  const Nanos interval(static_cast<int64_t>(1e9 / rate));
  const auto count = static_cast<int64_t>(rate * seconds);
  Latencies latencies;
  std::atomic<int64_t> next = 0, failed = 0;
  const MonoTime begin = TheClock().Mono();
  std::vector<std::thread> threads;
  for (int i = 0; i < kSubmitThreads; ++i) {
    threads.emplace_back([&] {
      for (int64_t number = next++; number < count; number = next++) {
        const MonoTime due = begin + number * interval;
        const Nanos early = due - TheClock().Mono();
        if (early > Nanos(0)) TheClock().Sleep(early);
        v1::SubmitJobRequest mine = *request;
        mine.set_request_id(RandomUuid());
        grpc::ClientContext context;
        rpc::SetDeadline(context, kDeadline);
        v1::Job job;
        const grpc::Status status = stub->SubmitJob(&context, mine, &job);
        if (!status.ok() && failed++ == 0) {
          fmt::print(stderr, "a submit failed: {}\n", status.error_message());
        }
        latencies.Add(TheClock().Mono() - due);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double took = Millis(TheClock().Mono() - begin) / 1e3;
  fmt::print("{{\"rate\": {:.1f}, \"failed\": {}, {}}}\n", static_cast<double>(count) / took,
             failed.load(), latencies.Json());
  return failed > 0 ? 1 : 0;
}

// What all simulated workers did.
struct Counts {
  std::atomic<int64_t> connected{0}, dispatched{0}, answered{0}, broken{0};
  std::atomic<int64_t> first_ns{0}, last_ns{0};
};

// One node. The library calls its reactions one at a time; the heartbeat comes from outside.
class SimulatedWorker final : public grpc::ClientBidiReactor<v1::WorkerMessage, v1::ServerMessage> {
 public:
  SimulatedWorker(const std::string& address, int number, int slots, Counts& counts)
      : stub_(v1::WorkerService::NewStub(Dial(address, number))), counts_(counts) {
    v1::WorkerMessage hello;
    v1::Register& message = *hello.mutable_register_();
    message.set_node(fmt::format("sim-{:04}", number));
    message.set_incarnation(RandomUuid());
    message.set_data_dir_id(fmt::format("sim-{}", number));
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
      slot.set_gpu_type("H100");
      slot.set_product_name("NVIDIA H100 80GB HBM3 (simulated)");
      slot.set_uuid(fmt::format("GPU-sim-{}-{}", number, i));
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
    Report();
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
          const int64_t now = TheClock().Mono().time_since_epoch().count();
          int64_t first = 0;
          counts_.first_ns.compare_exchange_strong(first, now);
          counts_.last_ns = now;
          ++counts_.dispatched;
        }
      }
    }
    if (runs) Report(v1::AttemptStatus::RUNNING);
    if (news) Report();
  }

  void Report(v1::AttemptStatus::State state = v1::AttemptStatus::DONE) {
    v1::WorkerMessage message;
    v1::Observed& observed = *message.mutable_observed();
    *observed.mutable_slots() = slots_;
    observed.set_time_us(UnixMicros(TheClock().Wall()));
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
  Counts& counts_;
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

int Workers(const std::string& address, int count, int slots, double seconds) {
  Counts counts;
  std::vector<std::unique_ptr<SimulatedWorker>> workers;
  for (int i = 0; i < count; ++i) {
    workers.push_back(std::make_unique<SimulatedWorker>(address, i, slots, counts));
  }
  const auto patience = TheClock().Mono() + std::chrono::seconds(600);
  while (counts.connected < count && TheClock().Mono() < patience) {
    TheClock().Sleep(std::chrono::milliseconds(10));
  }
  fmt::print("{{\"connected\": {}}}\n", counts.connected.load());
  std::fflush(stdout);
  // Heartbeats evenly over their interval.
  const Nanos step = Nanos(kHeartbeat) / count;
  const MonoTime begin = TheClock().Mono();
  const auto end = begin + Nanos(static_cast<int64_t>(seconds * 1e9));
  for (int64_t i = 0;; ++i) {
    const MonoTime due = begin + i * step;
    if (due >= end) break;
    const Nanos early = due - TheClock().Mono();
    if (early > Nanos(0)) TheClock().Sleep(early);
    workers[static_cast<size_t>(i % count)]->Heartbeat();
  }
  const double span = static_cast<double>(counts.last_ns - counts.first_ns) / 1e9;
  fmt::print("{{\"dispatched\": {}, \"span_s\": {:.3f}, \"answered\": {}, \"broken\": {}}}\n",
             counts.dispatched.load(), span, counts.answered.load(), counts.broken.load());
  std::fflush(stdout);
  for (const auto& worker : workers) worker->Stop();
  return counts.connected == count ? 0 : 1;
}

class Follower final : public Stream<v1::ReadLogResponse> {
 public:
  Follower(v1::JobService::Stub& stub, const std::string& job) {
    request_.set_name(job);
    request_.set_follow(true);
    stub.async()->ReadLog(&context_, &request_, this);
    Start();
  }
  int64_t bytes() const { return bytes_; }

 private:
  void Take(const v1::ReadLogResponse& answer) override {
    bytes_ += static_cast<int64_t>(answer.data().size());
  }

  v1::ReadLogRequest request_;
  std::atomic<int64_t> bytes_{0};
};

int Follow(const std::string& address, const std::string& job, int count, double seconds) {
  Dashboards dashboards(address);
  std::vector<std::unique_ptr<Follower>> followers;
  for (int i = 0; i < count; ++i) {
    followers.push_back(std::make_unique<Follower>(dashboards.Next(), job));
  }
  TheClock().Sleep(Nanos(static_cast<int64_t>(seconds * 1e9)));
  int64_t least = followers.front()->bytes(), most = 0;
  for (const auto& follower : followers) {
    least = std::min(least, follower->bytes());
    most = std::max(most, follower->bytes());
  }
  int refused = 0;
  for (const auto& follower : followers) follower->Cancel();
  for (const auto& follower : followers) refused += follower->Failed() ? 1 : 0;
  fmt::print("{{\"streams\": {}, \"refused\": {}, \"least_bytes\": {}, \"most_bytes\": {}}}\n",
             count, refused, least, most);
  return refused > 0 ? 1 : 0;
}

class Watcher final : public Stream<v1::Job> {
 public:
  // All are borrowed. Adds to `latencies` how long after `cancelled` it knows of the job's end.
  Watcher(v1::JobService::Stub& stub, const std::string& job, std::atomic<int>& watching,
          const std::atomic<MonoTime>& cancelled, Latencies& latencies)
      : watching_(watching), cancelled_(cancelled), latencies_(latencies) {
    request_.set_name(job);
    stub.async()->WatchJob(&context_, &request_, this);
    Start();
  }

 private:
  void Take(const v1::Job& job) override {
    if (!std::exchange(seen_, true)) ++watching_;
    if (job.state() == v1::Job::CANCELLED) latencies_.Add(TheClock().Mono() - cancelled_.load());
  }

  std::atomic<int>& watching_;
  const std::atomic<MonoTime>& cancelled_;
  Latencies& latencies_;
  v1::WatchJobRequest request_;
  bool seen_ = false;
};

int Watch(const std::string& address, const std::string& job, int count, double seconds) {
  std::atomic<int> watching = 0;
  std::atomic<MonoTime> cancelled = MonoTime();
  Latencies latencies;
  Dashboards dashboards(address);
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (int i = 0; i < count; ++i) {
    watchers.push_back(
        std::make_unique<Watcher>(dashboards.Next(), job, watching, cancelled, latencies));
  }
  const auto patience = TheClock().Mono() + std::chrono::seconds(600);
  while (watching < count && TheClock().Mono() < patience) {
    TheClock().Sleep(std::chrono::milliseconds(10));
  }
  fmt::print("{{\"watching\": {}}}\n", watching.load());
  std::fflush(stdout);
  TheClock().Sleep(Nanos(static_cast<int64_t>(seconds * 1e9)));
  v1::CancelJobRequest request;
  request.set_name(job);
  grpc::ClientContext context;
  rpc::SetDeadline(context, kDeadline);
  v1::Job ended;
  const auto stub = v1::JobService::NewStub(Dial(address, count));
  cancelled = TheClock().Mono();
  const grpc::Status status = stub->CancelJob(&context, request, &ended);
  if (!status.ok()) {
    fmt::print(stderr, "{}\n", status.error_message());
    return 1;
  }
  int failed = 0;
  for (const auto& watcher : watchers) failed += watcher->Failed() ? 1 : 0;
  fmt::print("{{\"failed\": {}, {}}}\n", failed, latencies.Json());
  return failed > 0 ? 1 : 0;
}

int List(const std::string& address, int count) {
  const auto stub = v1::JobService::NewStub(Dial(address, 0));
  Latencies latencies;
  for (int i = 0; i < count; ++i) {
    grpc::ClientContext context;
    rpc::SetDeadline(context, kDeadline);
    v1::ListJobsRequest request;
    request.set_page_size(50);
    v1::ListJobsResponse response;
    const MonoTime begin = TheClock().Mono();
    const grpc::Status status = stub->ListJobs(&context, request, &response);
    if (!status.ok()) {
      fmt::print(stderr, "{}\n", status.error_message());
      return 1;
    }
    latencies.Add(TheClock().Mono() - begin);
  }
  fmt::print("{{{}}}\n", latencies.Json());
  return 0;
}

int Main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const auto is = [&](const char* mode, size_t size) {
    return args.size() == size && args[1] == mode;
  };
  if (is("submit", 6)) {
    return Submit(args[0], args[2], args[3], std::stod(args[4]), std::stod(args[5]));
  }
  if (is("workers", 5)) {
    return Workers(args[0], std::stoi(args[2]), std::stoi(args[3]), std::stod(args[4]));
  }
  if (is("follow", 5)) return Follow(args[0], args[2], std::stoi(args[3]), std::stod(args[4]));
  if (is("watch", 5)) return Watch(args[0], args[2], std::stoi(args[3]), std::stod(args[4]));
  if (is("list", 3)) return List(args[0], std::stoi(args[2]));
  fmt::print(stderr, "see tests/bench/service_load.py\n");
  return 2;
}

}  // namespace
}  // namespace sft

int main(int argc, char** argv) { return sft::Main(argc, argv); }
