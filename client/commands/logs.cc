#include <fmt/format.h>

#include <optional>

#include "client/base/interrupt.h"
#include "client/base/job_follow.h"
#include "client/commands/commands.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "common/base/utf8.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

struct LogOptions {
  std::string job;
  int rank = 0;
  int attempt = 0;
  std::optional<int> tail;
  bool follow = false;
  bool prepare = false;
};

// "12,345"
std::string Grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

// Reads a log to its end, through disconnects: a broken stream resumes at the byte it had reached
// and, when the job is restarted, continues with the next attempt's log.
class LogReader {
 public:
  LogReader(Connection& connection, const LogOptions& options) : connection_(connection) {
    request_.set_name(options.job);
    request_.set_attempt(options.attempt);
    request_.set_next_attempts(options.attempt == 0);
    request_.set_rank(options.rank);
    if (options.tail) request_.set_tail_lines(*options.tail);
    request_.set_follow(options.follow);
    request_.set_stream(options.prepare ? "prepare" : "log");
  }

  absl::Status Run() {
    absl::Status status =
        ReadThroughOutages(connection_, request_.follow(),
                           [this](bool& heard, bool& ended) { return Stream(heard, ended); });
    connection_.console().out << Lines(begun_) << std::flush;
    return status;
  }
  bool printed() const { return printed_; }

 private:
  grpc::Status Stream(bool& heard, bool& ended) {
    grpc::ClientContext context;
    Interrupt interrupt(context);
    auto reader = connection_.To<v1::JobService>().ReadLog(&context, request_);
    v1::ReadLogResponse response;
    while (reader->Read(&response)) {
      heard = true;
      SayWhatIsNotThere(response);
      Print(response.data());
      printed_ = printed_ || !response.data().empty();
      request_.set_offset(response.offset() + static_cast<int64_t>(response.data().size()));
      request_.clear_tail_lines();
      if (response.attempt() > 0) request_.set_attempt(response.attempt());
      ended = ended || response.end_of_file();
    }
    return reader->Finish();
  }

  // A pipe or a file gets the log's bytes; a terminal shows its control characters.
  void Print(const std::string& data) {
    std::ostream& out = connection_.console().out;
    if (!connection_.console().out_terminal) {
      out << data << std::flush;
      return;
    }
    begun_ += data;
    const size_t whole = begun_.size() - BytesOfBegunCharacter(begun_);
    out << Lines(std::string_view(begun_).substr(0, whole)) << std::flush;
    begun_.erase(0, whole);
  }

  void SayWhatIsNotThere(const v1::ReadLogResponse& response) {
    std::ostream& err = connection_.console().err;
    if (request_.attempt() > 0 && response.attempt() > request_.attempt()) {
      err << fmt::format("... attempt {} has ended; what follows is of attempt {}\n",
                         request_.attempt(), response.attempt());
    }
    if (!response.has_gap()) return;
    const v1::LogGap& gap = response.gap();
    err << fmt::format("... {} bytes were removed by the log's limit: {} to {}\n",
                       Grouped(gap.end() - gap.begin()), Grouped(gap.begin()),
                       Grouped(gap.end() - 1));
  }

  Connection& connection_;
  v1::ReadLogRequest request_;
  bool printed_ = false;
  std::string begun_;  // the first bytes of a character whose others come with the next piece
};

ExitCode Logs(Connection& connection, const LogOptions& options) {
  LogReader reader(connection, options);
  const absl::Status status = reader.Run();
  if (!status.ok()) return Fail(connection, status);
  const std::string again = fmt::format("sftctl logs {} --follow", options.job);
  if (Interrupt::Raised()) return Detached(connection, again);
  if (!reader.printed() && !options.prepare && !options.tail) {
    connection.console().err << fmt::format(
        "there is no log of rank {}: it has written nothing, or what it wrote was removed, as "
        "`sftctl events {}` then says; what the preparation wrote: `sftctl logs {} --prepare`\n",
        options.rank, options.job, options.job);
  }
  if (!options.follow) return kSucceeded;
  // The log has ended; the job ends a moment later, when its result is stored.
  FollowHandlers handlers;
  handlers.on_job = [](const v1::Job&) {};
  handlers.on_metric = [](const v1::Metric&) {};
  const absl::StatusOr<v1::Job> job =
      FollowJob(connection, options.job, {.reached = true}, handlers);
  if (!job.ok()) {
    return Interrupt::Raised() ? Detached(connection, again) : Fail(connection, job.status());
  }
  PrintEnding(connection, *job);
  return ExitCodeOf(*job);
}

}  // namespace

void AddLogs(Command& app) {
  Command* command =
      app.AddCommand("logs", "Print the log of a rank", "sftctl logs job-abc --rank 1 --follow");
  auto options = std::make_shared<LogOptions>();
  command->AddOption("JOB", options->job, "Job")->Required();
  command->AddOption("--rank", options->rank, "Rank whose log to print")
      ->WholeNumber(0)
      ->ShowDefault();
  command->AddOption("--attempt", options->attempt, "Attempt (default: the last)")->WholeNumber(0);
  command
      ->AddOption("--tail", options->tail, "Start with the last N lines; 0: print only new output")
      ->WholeNumber(0);
  command->AddFlag("--follow", options->follow,
                   "Keep printing until the job ends; the exit code tells its verdict");
  command->AddFlag("--prepare", options->prepare,
                   "Print the log of the data preparation (tokenising) instead of a rank's");
  command->Run([options](Connection& connection) { return Logs(connection, *options); });
}

}  // namespace sft::client
