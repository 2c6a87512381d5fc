#include <fmt/format.h>

#include <algorithm>

#include "client/commands/commands.h"
#include "client/interrupt.h"
#include "client/job_follow.h"
#include "client/output/json.h"

namespace sft::client {
namespace {

struct LogOptions {
  std::string job;
  int rank = 0;
  int attempt = 0;
  int tail = 0;
  bool follow = false;
  bool prepare = false;
};

// Reads a log to its end, through disconnects: a broken stream goes on at the byte it had reached.
class LogReader {
 public:
  LogReader(Connection& connection, const LogOptions& options) : connection_(connection) {
    request_.set_name(options.job);
    request_.set_attempt(options.attempt);
    request_.set_rank(options.rank);
    request_.set_tail_lines(options.tail);
    request_.set_follow(options.follow);
    request_.set_stream(options.prepare ? "prepare" : "log");
  }

  absl::Status Run() {
    MonoTime lost = connection_.clock().Mono();
    bool heard_once = false;
    for (;;) {
      bool heard = false;
      const grpc::Status status = Stream(heard);
      if (ended_ || Interrupt::Raised()) return absl::OkStatus();
      if (status.ok()) {
        if (!request_.follow()) return absl::OkStatus();
      } else if (status.error_code() != grpc::StatusCode::UNAVAILABLE) {
        return connection_.Describe(status);
      }
      heard_once = heard_once || heard;
      const MonoTime now = connection_.clock().Mono();
      if (heard) lost = now;
      if (!request_.follow() || !heard_once || now - lost > kOutageLimit) {
        return status.ok() ? absl::OkStatus() : connection_.Describe(status);
      }
      connection_.clock().Sleep(std::chrono::seconds(1));
    }
  }

 private:
  grpc::Status Stream(bool& heard) {
    grpc::ClientContext context;
    Interrupt interrupt(context);
    auto reader = connection_.jobs().ReadLog(&context, request_);
    v1::ReadLogResponse response;
    while (reader->Read(&response)) {
      heard = true;
      connection_.console().out << response.data() << std::flush;
      request_.set_offset(response.offset() + static_cast<int64_t>(response.data().size()));
      request_.set_tail_lines(0);
      if (response.attempt() > 0) request_.set_attempt(response.attempt());
      ended_ = ended_ || response.end_of_file();
    }
    return reader->Finish();
  }

  Connection& connection_;
  v1::ReadLogRequest request_;
  bool ended_ = false;
};

ExitCode Logs(Connection& connection, const LogOptions& options) {
  const absl::Status status = LogReader(connection, options).Run();
  if (!status.ok()) return Fail(connection, status);
  if (Interrupt::Raised()) {
    connection.console().err << fmt::format(
        "\ndetached; the job goes on. Come back with `sftctl logs {} --follow`\n", options.job);
    return kInterrupted;
  }
  if (!options.follow) return kSucceeded;
  // The log has ended; the job ends a moment later, when its result is stored.
  FollowHandlers handlers;
  handlers.on_job = [](const v1::Job&) {};
  handlers.on_metric = [](const v1::Metric&) {};
  const absl::StatusOr<v1::Job> job = FollowJob(connection, options.job, {}, handlers);
  if (!job.ok()) return Interrupt::Raised() ? kInterrupted : Fail(connection, job.status());
  PrintEnding(connection, *job);
  return ExitCodeOf(*job);
}

}  // namespace

void AddLogs(CLI::App& app, Session& session) {
  CLI::App* command = AddCommand(app, "logs", "Print what a rank has written",
                                 "sftctl logs job-abc --rank 1 --follow");
  auto options = std::make_shared<LogOptions>();
  command->add_option("JOB", options->job, "Job")->required();
  command->add_option("--rank", options->rank, "Rank of the gang")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--attempt", options->attempt, "Attempt (default: the last)")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--tail", options->tail, "Start at the last N lines")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--follow", options->follow,
                    "Go on until the job has ended; exits with its verdict");
  command->add_flag("--prepare", options->prepare,
                    "The log of the preparation (tokenising) instead of a rank's");
  command->callback([&session, options] {
    session.command = [options](Connection& connection) { return Logs(connection, *options); };
  });
}

}  // namespace sft::client
