// Submits jobs at a fixed rate over one long-lived connection, for kill_storm.py:
//
//   sft-submit-load PORT JOB_FILE DATA_FILE JOBS_PER_SECOND
//
// Each submit has a request id of its own, which is repeated until the server acknowledges it; each
// tenth is sent once more after that, as a client whose answer was lost would. A line "REQUEST JOB
// REPEATS" on standard output is an acknowledged submit. Runs until its standard input ends, then
// finishes what it began. The data file was uploaded before, with a first job of sftctl.
//
// Exit codes: 0, 1 when a repeat was answered with another job, 2 for a wrong command line or a
// submit that the server refuses.

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/rpc/channel.h"
#include "sft/v1/job_service.grpc.pb.h"
#include "tests/e2e/submit_request.h"

namespace sft {
namespace {

// Enough that those which wait for a server that is down keep no later one from being sent on time.
constexpr int kThreads = 16;
constexpr int kDoubleCheckEvery = 10;
constexpr std::chrono::milliseconds kRepeatAfter{50};
constexpr std::chrono::seconds kDeadline{5};

class Load {
 public:
  Load(const std::string& address, v1::SubmitJobRequest request, double rate)
      : request_(std::move(request)), interval_(static_cast<int64_t>(1e9 / rate)) {
    grpc::ChannelArguments arguments;
    // A restarted server is found at once.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    stub_ = v1::JobService::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }

  int Run() {
    begin_ = clock_.Mono();
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back([this] { Submit(); });
    char ignored[256];
    while (read(STDIN_FILENO, ignored, sizeof(ignored)) > 0) continue;
    stop_ = true;
    for (std::thread& thread : threads) thread.join();
    return result_;
  }

 private:
  // Each thread takes the next number and waits for its time.
  void Submit() {
    while (!stop_ && result_ == 0) {
      const int64_t number = next_++;
      const Nanos early = begin_ + number * interval_ - clock_.Mono();
      if (early > Nanos(0)) clock_.Sleep(early);
      v1::SubmitJobRequest request = request_;
      request.set_request_id(RandomUuid());
      v1::Override& name = *request.add_overrides();
      name.set_key("job.name");
      name.set_value(fmt::format("load-{}", number));
      name.set_kind(v1::Override::FLAG);
      name.set_origin("--name");
      int repeats = 0;
      const std::string job = UntilAcknowledged(request, repeats);
      if (job.empty()) return;
      Say(request.request_id(), job, repeats);
      if (number % kDoubleCheckEvery == 0) CheckRepeat(request, job);
    }
  }

  // The job's id; empty when the server refuses it.
  std::string UntilAcknowledged(const v1::SubmitJobRequest& request, int& repeats) {
    while (true) {
      grpc::ClientContext context;
      rpc::SetDeadline(context, kDeadline);
      v1::Job job;
      const grpc::Status status = stub_->SubmitJob(&context, request, &job);
      if (status.ok()) return job.name().substr(job.name().rfind('/') + 1);
      const auto code = status.error_code();
      if (code != grpc::StatusCode::UNAVAILABLE && code != grpc::StatusCode::DEADLINE_EXCEEDED) {
        fmt::print(stderr, "a submit was refused: {}\n", status.error_message());
        result_ = 2;
        return "";
      }
      ++repeats;
      clock_.Sleep(kRepeatAfter);
    }
  }

  void CheckRepeat(const v1::SubmitJobRequest& request, const std::string& job) {
    int ignored = 0;
    const std::string again = UntilAcknowledged(request, ignored);
    if (again.empty() || again == job) return;
    fmt::print(stderr, "request {} made job {} and job {}\n", request.request_id(), job, again);
    result_ = 1;
  }

  void Say(const std::string& request, const std::string& job, int repeats) {
    MutexLock lock(mutex_);
    fmt::print("{} {} {}\n", request, job, repeats);
    fflush(stdout);
  }

  const v1::SubmitJobRequest request_;
  const Nanos interval_;
  Clock& clock_ = Clock::Real();
  MonoTime begin_;
  std::unique_ptr<v1::JobService::Stub> stub_;
  std::atomic<int64_t> next_ = 0;
  std::atomic<bool> stop_ = false;
  std::atomic<int> result_ = 0;
  Mutex mutex_;
};

int Main(int argc, char** argv) {
  if (argc != 5) return 2;
  const absl::StatusOr<v1::SubmitJobRequest> request = MakeSubmitRequest(argv[2], argv[3]);
  if (!request.ok()) {
    fmt::print(stderr, "{}\n", Message(request.status()));
    return 2;
  }
  return Load(fmt::format("127.0.0.1:{}", argv[1]), *request, std::stod(argv[4])).Run();
}

}  // namespace
}  // namespace sft

int main(int argc, char** argv) { return sft::Main(argc, argv); }
