// The clients of tests/bench/service_load.py: loads a server from one process and prints lines of
// JSON.
//
//   sft-service-load ADDRESS submit JOB_FILE DATA_FILE RATE SECONDS
//   sft-service-load ADDRESS status JOB RATE SECONDS
//   sft-service-load ADDRESS workers COUNT SLOTS SECONDS
//   sft-service-load ADDRESS run SLOTS SECONDS
//   sft-service-load ADDRESS follow JOB COUNT SECONDS
//   sft-service-load ADDRESS watch JOB COUNT SECONDS
//   sft-service-load ADDRESS list COUNT
//
// submit and status keep to their rate whatever the server does: a latency counts from the moment
// at which the call was due. workers are registered nodes that report each 5 s and end at once what
// they are given. run is one node of another type of GPU, which keeps what it is given running and
// sends a point of each job every second. follow reads one log with so many streams. watch watches
// one job with so many, while nothing happens, then cancels it: a latency counts from before the
// cancel to when a watcher knows.

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
#include "tests/e2e/load_workers.h"
#include "tests/e2e/submit_request.h"

namespace sft {
namespace {

constexpr std::chrono::seconds kHeartbeat{5};
constexpr std::chrono::seconds kDeadline{20};
constexpr int kSubmitThreads = 32, kStatusThreads = 8;
constexpr std::chrono::seconds kPointEvery{1};

Clock& TheClock() { return Clock::Real(); }

// Calls `call` at a rate that it keeps whatever the server does: a latency counts from the moment
// at which the call was due.
template <typename Call>
int AtRate(double rate, double seconds, int threads, const Call& call) {
  const Nanos interval(static_cast<int64_t>(1e9 / rate));
  const auto count = static_cast<int64_t>(rate * seconds);
  Latencies latencies;
  std::atomic<int64_t> next = 0, failed = 0;
  const MonoTime begin = TheClock().Mono();
  std::vector<std::thread> callers;
  for (int i = 0; i < threads; ++i) {
    callers.emplace_back([&] {
      for (int64_t number = next++; number < count; number = next++) {
        const MonoTime due = begin + number * interval;
        const Nanos early = due - TheClock().Mono();
        if (early > Nanos(0)) TheClock().Sleep(early);
        grpc::ClientContext context;
        rpc::SetDeadline(context, kDeadline);
        const grpc::Status status = call(context);
        if (!status.ok() && failed++ == 0) {
          fmt::print(stderr, "a call failed: {}\n", status.error_message());
        }
        latencies.Add(TheClock().Mono() - due);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  const double took = Millis(TheClock().Mono() - begin) / 1e3;
  fmt::print("{{\"rate\": {:.1f}, \"failed\": {}, {}}}\n", static_cast<double>(count) / took,
             failed.load(), latencies.Json());
  return failed > 0 ? 1 : 0;
}

int Submit(const std::string& address, const std::string& job_file, const std::string& data_file,
           double rate, double seconds) {
  const absl::StatusOr<v1::SubmitJobRequest> request = MakeSubmitRequest(job_file, data_file);
  if (!request.ok()) {
    fmt::print(stderr, "{}\n", Message(request.status()));
    return 2;
  }
  const auto stub = v1::JobService::NewStub(Dial(address, 0));
  return AtRate(rate, seconds, kSubmitThreads, [&](grpc::ClientContext& context) {
    v1::SubmitJobRequest mine = *request;
    mine.set_request_id(RandomUuid());
    v1::Job job;
    return stub->SubmitJob(&context, mine, &job);
  });
}

int Status(const std::string& address, const std::string& job, double rate, double seconds) {
  const auto stub = v1::JobService::NewStub(Dial(address, 0));
  v1::GetJobRequest request;
  request.set_name(job);
  return AtRate(rate, seconds, kStatusThreads, [&](grpc::ClientContext& context) {
    v1::Job answer;
    return stub->GetJob(&context, request, &answer);
  });
}

int Workers(const std::string& address, int count, int slots, double seconds) {
  Counts counts;
  std::vector<std::unique_ptr<SimulatedWorker>> workers;
  for (int i = 0; i < count; ++i) {
    workers.push_back(
        std::make_unique<SimulatedWorker>(address, SimulatedWorker::Kind(), i, slots, counts));
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

int Run(const std::string& address, int slots, double seconds) {
  Counts counts;
  SimulatedWorker worker(address, {"runner", "A100", /*keeps=*/true}, 0, slots, counts);
  while (counts.connected < 1) TheClock().Sleep(std::chrono::milliseconds(10));
  fmt::print("{{\"connected\": 1}}\n");
  std::fflush(stdout);
  int64_t points = 0, refused = 0;
  const MonoTime begin = TheClock().Mono();
  const auto end = begin + Nanos(static_cast<int64_t>(seconds * 1e9));
  for (int64_t i = 0;; ++i) {
    const MonoTime due = begin + i * Nanos(kPointEvery);
    if (due >= end) break;
    const Nanos early = due - TheClock().Mono();
    if (early > Nanos(0)) TheClock().Sleep(early);
    worker.Heartbeat();
    const auto [sent, not_taken] = worker.SendPoints();
    points += sent;
    refused += not_taken;
  }
  fmt::print("{{\"points\": {}, \"refused\": {}, \"broken\": {}}}\n", points, refused,
             counts.broken.load());
  std::fflush(stdout);
  worker.Stop();
  return refused > 0 ? 1 : 0;
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
  if (is("status", 5)) return Status(args[0], args[2], std::stod(args[3]), std::stod(args[4]));
  if (is("run", 4)) return Run(args[0], std::stoi(args[2]), std::stod(args[3]));
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
