#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/output/json.h"

namespace sft::client {
namespace {

struct CancelOptions {
  std::string job;
  std::string sweep;
  std::string reason;
  bool checkpoint = false;
};

ExitCode Cancel(Connection& connection, const CancelOptions& options, bool json) {
  v1::CancelJobRequest request;
  request.set_name(options.job);
  request.set_reason(options.reason);
  request.set_checkpoint(options.checkpoint);
  const auto job = connection.Call(connection.jobs(), &v1::JobService::Stub::CancelJob, request);
  if (!job.ok()) return Fail(connection, job.status());
  if (json) {
    connection.console().out << JobJson(*job).dump(2) << "\n";
  } else {
    connection.console().out << fmt::format("{} {}\n", ShortName(job->name()),
                                            StateName(job->state()));
  }
  if (IsEnded(job->state()) && job->state() != v1::Job::CANCELLED) {
    connection.console().err << "it had ended already\n";
  }
  return kSucceeded;
}

ExitCode CancelSweep(Connection& connection, const CancelOptions& options, bool json) {
  v1::CancelSweepRequest request;
  request.set_sweep(options.sweep);
  request.set_reason(options.reason);
  request.set_checkpoint(options.checkpoint);
  const auto done =
      connection.Call(connection.scheduling(), &v1::SchedulingService::Stub::CancelSweep, request);
  if (!done.ok()) return Fail(connection, done.status());
  if (json) {
    const Json answer = {
        {"sweep", options.sweep}, {"cancelled", done->cancelled()}, {"ended", done->ended()}};
    connection.console().out << answer.dump(2) << "\n";
  } else {
    connection.console().out << fmt::format("{}: {} cancelled, {} had ended\n", options.sweep,
                                            done->cancelled(), done->ended());
  }
  return kSucceeded;
}

}  // namespace

void AddCancel(CLI::App& app, Session& session) {
  CLI::App* command =
      AddCommand(app, "cancel", "End a job; its processes are gone when it is CANCELLED",
                 "sftctl cancel job-abc && sftctl wait job-abc");
  auto options = std::make_shared<CancelOptions>();
  CLI::Option* job = command->add_option("JOB", options->job, "Job");
  command->add_option("--sweep", options->sweep, "All jobs of this sweep instead of one")
      ->excludes(job);
  command->add_option("--reason", options->reason, "Kept in the job's history");
  command->add_flag(
      "--checkpoint", options->checkpoint,
      "Save the training state first, for `sftctl resume` (within the workers' grace)");
  AddJsonFlag(command, session);
  command->callback([&session, options] {
    if (options->job.empty() && options->sweep.empty()) {
      throw CLI::ValidationError("JOB", "name a job, or --sweep SWEEP");
    }
    session.command = [&session, options](Connection& connection) {
      if (!options->sweep.empty()) return CancelSweep(connection, *options, session.json);
      return Cancel(connection, *options, session.json);
    };
  });
}

}  // namespace sft::client
