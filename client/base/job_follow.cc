#include "client/base/job_follow.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/base/interrupt.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

constexpr char kLostServer[] = "lost the server; waiting for it to come back (what runs goes on)\n";

// True when the stream is to be reopened: a server that shuts down cancels its calls.
bool IsOutage(const grpc::Status& status) {
  return status.ok() || status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::CANCELLED;
}

class Follower {
 public:
  Follower(Connection& connection, const std::string& name, const FollowOptions& options,
           const FollowHandlers& handlers)
      : connection_(connection), name_(name), options_(options), handlers_(handlers) {
    if (options.timeout) deadline_ = connection.clock().Mono() + *options.timeout;
  }

  absl::StatusOr<v1::Job> Run() {
    MonoTime lost = connection_.clock().Mono();
    Nanos pause = std::chrono::milliseconds(200);
    bool told = false;
    for (;;) {
      bool heard = false;
      const grpc::Status status = Stream(heard);
      if (Interrupt::Raised()) return absl::CancelledError("interrupted");
      if (enough_ || (last_ && IsEnded(last_->state()))) return *last_;
      const MonoTime now = connection_.clock().Mono();
      if (deadline_ && now >= *deadline_) return TimedOut();
      if (heard) {
        lost = now;
        pause = std::chrono::milliseconds(200);
        told = false;
      }
      const bool reached = last_ || options_.reached;
      if (!IsOutage(status) || !reached || now - lost > kOutageLimit) {
        if (!status.ok()) return connection_.Describe(status);
        return Internal(
            fmt::format("the server ended the watch of {}, which has not ended", name_));
      }
      if (!told) {
        connection_.console().err << kLostServer;
        told = true;
      }
      connection_.clock().Sleep(pause);
      pause = std::min<Nanos>(pause * 2, std::chrono::seconds(5));
      connection_.Choose();
    }
  }

 private:
  // The timeout may have passed before the watch delivered anything, so the job is fetched.
  absl::StatusOr<v1::Job> TimedOut() {
    if (!last_) {
      v1::GetJobRequest request;
      request.set_name(name_);
      SFT_ASSIGN_OR_RETURN(last_, connection_.Call(&v1::JobService::Stub::GetJob, request));
      if (IsEnded(last_->state())) return *last_;
    }
    return DeadlineExceeded(fmt::format("{} has not ended within {} s: it is {}", name_,
                                        options_.timeout->count(), StateName(last_->state())));
  }

  grpc::Status Stream(bool& heard) {
    grpc::ClientContext context;
    if (deadline_) {
      rpc::SetDeadline(context, std::max<Nanos>(*deadline_ - connection_.clock().Mono(), Nanos(0)));
    }
    Interrupt interrupt(context);
    v1::WatchJobRequest request;
    request.set_name(name_);
    auto reader = connection_.To<v1::JobService>().WatchJob(&context, request);
    v1::Job job;
    while (!enough_ && reader->Read(&job)) {
      heard = true;
      last_ = job;
      if (options_.metrics) ReadMetrics();
      handlers_.on_job(job);
      enough_ = options_.enough && options_.enough();
      if (enough_) context.TryCancel();
    }
    return reader->Finish();
  }

  // Reads points added since the last call. An error is left to the watch, which gets it too.
  void ReadMetrics() {
    grpc::ClientContext context;
    rpc::SetDeadline(context, rpc::kUnaryDeadline);
    const Interrupt interrupt(context);
    v1::ReadMetricsRequest request;
    request.set_name(name_);
    request.set_index(metric_index_);
    auto reader = connection_.To<v1::JobService>().ReadMetrics(&context, request);
    v1::ReadMetricsResponse response;
    while (reader->Read(&response)) {
      for (const v1::Metric& metric : response.metrics()) handlers_.on_metric(metric);
      metric_index_ = response.next_index();
    }
    reader->Finish().ok();
  }

  Connection& connection_;
  const std::string& name_;
  const FollowOptions& options_;
  const FollowHandlers& handlers_;
  std::optional<MonoTime> deadline_;
  std::optional<v1::Job> last_;
  int64_t metric_index_ = 0;
  bool enough_ = false;
};

}  // namespace

absl::Status ReadThroughOutages(Connection& connection, bool follow, const ReadOnce& read) {
  MonoTime lost = connection.clock().Mono();
  bool told = false;
  for (;;) {
    bool heard = false, ended = false;
    const grpc::Status status = read(heard, ended);
    if (ended || Interrupt::Raised()) return absl::OkStatus();
    const MonoTime now = connection.clock().Mono();
    if (heard) {
      lost = now;
      told = false;
    }
    if (!follow || !IsOutage(status) || now - lost > kOutageLimit) {
      return status.ok() ? absl::OkStatus() : connection.Describe(status);
    }
    if (!told && !status.ok()) {
      connection.console().err << kLostServer;
      told = true;
    }
    connection.clock().Sleep(std::chrono::seconds(1));
    connection.Choose();
  }
}

absl::StatusOr<v1::Job> FollowJob(Connection& connection, const std::string& name,
                                  const FollowOptions& options, const FollowHandlers& handlers) {
  return Follower(connection, name, options, handlers).Run();
}

absl::StatusOr<v1::Job> FollowOneLine(Connection& connection, const std::string& id) {
  Console& console = connection.console();
  std::string last;
  FollowHandlers handlers;
  handlers.on_job = [&](const v1::Job& job) {
    std::string line = fmt::format("{} {}", id, StateName(job.state()));
    if (!job.reason().empty()) line += ": " + job.reason();
    if (!console.terminal || line == last) return;
    console.err << "\r\033[K" << OneLine(line).substr(0, std::max(console.width, 1)) << std::flush;
    last = line;
  };
  handlers.on_metric = [](const v1::Metric&) {};
  absl::StatusOr<v1::Job> job = FollowJob(connection, id, {}, handlers);
  if (!last.empty()) console.err << "\r\033[K" << std::flush;
  return job;
}

}  // namespace sft::client
