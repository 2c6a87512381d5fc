#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "common/base/json.h"
#include "sft/v1/job_service.grpc.pb.h"
#include "sft/v1/scheduling_service.grpc.pb.h"

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
  const auto job = connection.Call(&v1::JobService::Stub::CancelJob, request);
  if (!job.ok()) return Fail(connection, job.status());
  if (json) {
    connection.console().out << DumpJson(JobJson(*job), 2) << "\n";
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
  const auto done = connection.Call(&v1::SchedulingService::Stub::CancelSweep, request);
  if (!done.ok()) return Fail(connection, done.status());
  if (json) {
    const Json answer = {
        {"sweep", options.sweep}, {"cancelled", done->cancelled()}, {"ended", done->ended()}};
    connection.console().out << DumpJson(answer, 2) << "\n";
  } else {
    connection.console().out << fmt::format("{}: {} cancelled, {} had ended\n", options.sweep,
                                            done->cancelled(), done->ended());
  }
  return kSucceeded;
}

}  // namespace

void AddCancel(Command& app, Session& session) {
  Command* command =
      app.AddCommand("cancel", "Cancel a job; once it is CANCELLED, its processes have ended",
                     "sftctl cancel job-abc && sftctl wait job-abc");
  auto options = std::make_shared<CancelOptions>();
  Option* job = command->AddOption("JOB", options->job, "Job");
  command->AddOption("--sweep", options->sweep, "Cancel all jobs of this sweep instead of one job")
      ->Excludes(job);
  command->AddOption("--reason", options->reason, "Reason to keep in the job's history");
  command->AddFlag(
      "--checkpoint", options->checkpoint,
      "Save the training state first, for `sftctl resume` (within the workers' grace)");
  AddJsonFlag(command, session);
  command->Check([options] {
    const bool none = options->job.empty() && options->sweep.empty();
    return none ? "JOB: name a job, or --sweep SWEEP" : "";
  });
  command->Run([&session, options](Connection& connection) {
    if (!options->sweep.empty()) return CancelSweep(connection, *options, session.json);
    return Cancel(connection, *options, session.json);
  });
}

}  // namespace sft::client
