#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/base/interrupt.h"
#include "client/base/job_follow.h"
#include "client/output/json.h"
#include "common/base/json.h"

namespace sft::client {
namespace {

struct WaitOptions {
  std::string job;
  std::string timeout;
};

ExitCode Wait(Connection& connection, const WaitOptions& options, bool json) {
  FollowOptions follow;
  if (!options.timeout.empty()) {
    const absl::StatusOr<std::chrono::seconds> timeout = ParseDuration(options.timeout);
    if (!timeout.ok()) return Fail(connection, Annotate(timeout.status(), "--timeout"));
    follow.timeout = *timeout;
  }
  FollowHandlers handlers;
  handlers.on_job = [](const v1::Job&) {};
  handlers.on_metric = [](const v1::Metric&) {};
  const absl::StatusOr<v1::Job> job = FollowJob(connection, options.job, follow, handlers);
  if (!job.ok()) {
    if (Interrupt::Raised()) {
      return Detached(connection, fmt::format("sftctl wait {}", options.job));
    }
    return Fail(connection, job.status());
  }
  if (json) connection.console().out << DumpJson(JobJson(*job), 2) << "\n";
  PrintEnding(connection, *job);
  return ExitCodeOf(*job);
}

}  // namespace

void AddWait(Command& app, Session& session) {
  Command* command =
      app.AddCommand("wait", "Wait until a job ends; the exit code tells its verdict",
                     "sftctl wait job-abc --timeout 30m");
  auto options = std::make_shared<WaitOptions>();
  command->AddOption("JOB", options->job, "Job")->Required();
  command->AddOption("--timeout", options->timeout,
                     "Stop waiting after this time (60s, 5m, 2h), with exit code 4");
  AddJsonFlag(command, session);
  command->Run([&session, options](Connection& connection) {
    return Wait(connection, *options, session.json);
  });
}

}  // namespace sft::client
