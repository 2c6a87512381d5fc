#pragma once

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/rpc/channel.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft {

inline double Millis(Nanos time) { return static_cast<double>(time.count()) / 1e6; }

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
    return fmt::format(
        "\"count\": {}, \"p50_ms\": {:.3f}, \"p95_ms\": {:.3f}, \"p99_ms\": {:.3f}, \"max_ms\": "
        "{:.3f}",
        values.size(), at(0.5), at(0.95), at(0.99), at(1));
  }

 private:
  Mutex mutex_;
  std::vector<double> values_ SFT_GUARDED_BY(mutex_);
};

inline std::shared_ptr<grpc::Channel> Dial(const std::string& address, int number) {
  grpc::ChannelArguments arguments = rpc::ChannelOptions();
  // A connection of its own for each number, as from machines of their own.
  arguments.SetInt("sft.load", number);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// One stream that follows something.
template <typename Answer>
class Stream : public grpc::ClientReadReactor<Answer> {
 public:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    Take(answer_);
    this->StartRead(&answer_);
  }
  void OnDone(const grpc::Status& status) override {
    const MutexLock lock(mutex_);
    status_ = status;
    done_ = true;
    changed_.NotifyAll();
  }
  void Cancel() { context_.TryCancel(); }
  // Waits for its end. Whether the server refused it or broke it off.
  bool Failed() {
    const MutexLock lock(mutex_);
    while (!done_) changed_.Wait(mutex_);
    return !status_.ok() && status_.error_code() != grpc::StatusCode::CANCELLED;
  }

 protected:
  virtual void Take(const Answer& answer) = 0;
  void Start() {
    this->StartRead(&answer_);
    this->StartCall();
  }

  grpc::ClientContext context_;

 private:
  Answer answer_;
  Mutex mutex_;
  CondVar changed_;
  grpc::Status status_ SFT_GUARDED_BY(mutex_);
  bool done_ SFT_GUARDED_BY(mutex_) = false;
};

// Streams of some clients share a connection, as those of one dashboard would.
class Dashboards {
 public:
  explicit Dashboards(std::string address) : address_(std::move(address)) {}
  v1::JobService::Stub& Next() {
    constexpr int kStreamsEach = 50;
    if (streams_++ % kStreamsEach == 0) {
      stubs_.push_back(v1::JobService::NewStub(Dial(address_, streams_)));
    }
    return *stubs_.back();
  }

 private:
  const std::string address_;
  std::vector<std::unique_ptr<v1::JobService::Stub>> stubs_;
  int streams_ = 0;
};

}  // namespace sft
