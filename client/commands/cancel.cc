#include <fmt/format.h>

#include "client/base/job_group.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "common/base/json.h"
#include "sft/v1/job_service.grpc.pb.h"
#include "sft/v1/scheduling_service.grpc.pb.h"

namespace sft::client {
namespace {

struct CancelOptions {
  std::string job;
  std::string sweep;
  std::string group;
  std::string project;
  bool yes = false;
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

// Shows what would be cancelled where that was not agreed to, since a label may also be that of
// others.
ExitCode CancelGroup(Connection& connection, const CancelOptions& options, bool json) {
  constexpr size_t kMostCancelled = 10'000;
  const absl::StatusOr<std::vector<v1::Job>> jobs =
      JobsOfGroup(connection,
                  {options.group,
                   options.project,
                   {v1::Job::PENDING, v1::Job::PREPARING, v1::Job::RUNNING, v1::Job::CANCELLING}},
                  kMostCancelled);
  if (!jobs.ok()) return Fail(connection, jobs.status());
  for (const v1::Job& job : *jobs) {
    if (job.project() == jobs->front().project()) continue;
    return Fail(connection, InvalidArgument(fmt::format(
                                "projects {} and {} both have jobs of group \"{}\": "
                                "choose one with --project",
                                jobs->front().project(), job.project(), options.group)));
  }
  if (!options.yes && !jobs->empty()) {
    Table table({"JOB", "NAME", "STATE", "OWNER", "PROJECT"});
    for (const v1::Job& job : *jobs) {
      table.Add({ShortName(job.name()), job.display_name(), StateName(job.state()), job.owner(),
                 job.project()});
    }
    connection.console().err << table.Render();
    return Fail(connection,
                InvalidArgument(fmt::format(
                    "nothing was cancelled: add --yes to cancel {} of group \"{}\"",
                    jobs->size() == 1 ? "this job" : fmt::format("these {} jobs", jobs->size()),
                    options.group)));
  }
  v1::CancelJobRequest request;
  request.set_reason(options.reason);
  request.set_checkpoint(options.checkpoint);
  Json cancelled = Json::array();
  for (const v1::Job& job : *jobs) {
    request.set_name(job.name());
    const auto done = connection.Call(&v1::JobService::Stub::CancelJob, request);
    if (!done.ok()) return Fail(connection, Annotate(done.status(), ShortName(job.name())));
    cancelled.push_back(ShortName(job.name()));
    if (json) continue;
    connection.console().out << fmt::format("{} {}\n", ShortName(done->name()),
                                            StateName(done->state()));
  }
  if (json) {
    const Json answer = {{"group", options.group}, {"cancelled", cancelled}};
    connection.console().out << DumpJson(answer, 2) << "\n";
  } else if (jobs->empty()) {
    connection.console().err << fmt::format("all jobs of group \"{}\" had ended already\n",
                                            options.group);
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
  Option* group = command->AddOption("--group", options->group,
                                     "Cancel all jobs of this group instead (job.group)");
  command->AddFlag("--yes", options->yes, "With --group: cancel them; without it they are shown")
      ->Needs(group);
  AddProjectOption(command, options->project)->Needs(group);
  command->AddOption("--reason", options->reason, "Reason to keep in the job's history");
  command->AddFlag(
      "--checkpoint", options->checkpoint,
      "Save the training state first, for `sftctl resume` (within the workers' grace)");
  AddJsonFlag(command, session);
  command->Check([options] {
    const bool others = !options->job.empty() || !options->sweep.empty();
    if (options->group.empty() == others) return "";
    return others ? "--group: leave out JOB and --sweep"
                  : "JOB: name a job, or --sweep SWEEP, or --group GROUP";
  });
  command->Run([&session, options](Connection& connection) {
    if (!options->group.empty()) return CancelGroup(connection, *options, session.json);
    if (!options->sweep.empty()) return CancelSweep(connection, *options, session.json);
    return Cancel(connection, *options, session.json);
  });
}

}  // namespace sft::client
