#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "common/base/json.h"
#include "sft/v1/scheduling_service.grpc.pb.h"

namespace sft::client {
namespace {

struct HoldOptions {
  std::string job;
  std::string reason;
  bool pause = false;
};

ExitCode Print(Connection& connection, const absl::StatusOr<v1::Job>& job, bool json) {
  if (!job.ok()) return Fail(connection, job.status());
  if (json) {
    connection.console().out << DumpJson(JobJson(*job), 2) << "\n";
  } else {
    connection.console().out << fmt::format("{} {}{}\n", ShortName(job->name()),
                                            StateName(job->state()), job->held() ? " held" : "");
  }
  return kSucceeded;
}

ExitCode Hold(Connection& connection, const HoldOptions& options, bool json) {
  v1::HoldJobRequest request;
  request.set_name(options.job);
  request.set_reason(options.reason);
  request.set_pause(options.pause);
  return Print(connection, connection.Call(&v1::SchedulingService::Stub::HoldJob, request), json);
}

ExitCode Release(Connection& connection, const HoldOptions& options, bool json) {
  v1::ReleaseJobRequest request;
  request.set_name(options.job);
  return Print(connection, connection.Call(&v1::SchedulingService::Stub::ReleaseJob, request),
               json);
}

}  // namespace

void AddHold(Command& app, Session& session) {
  Command* hold = app.AddCommand("hold", "Keep a waiting job from starting",
                                 "sftctl hold job-abc --reason \"wait for the new data\"");
  auto options = std::make_shared<HoldOptions>();
  hold->AddOption("JOB", options->job, "Job")->Required();
  hold->AddOption("--reason", options->reason, "Shown as the reason why the job waits");
  hold->AddFlag("--pause", options->pause,
                "Also hold a job that runs: it writes a checkpoint, gives its GPUs back and waits");
  AddJsonFlag(hold, session);
  hold->Run([&session, options](Connection& connection) {
    return Hold(connection, *options, session.json);
  });
  Command* release = app.AddCommand("release", "Let a held job start", "sftctl release job-abc");
  release->AddOption("JOB", options->job, "Job")->Required();
  AddJsonFlag(release, session);
  release->Run([&session, options](Connection& connection) {
    return Release(connection, *options, session.json);
  });
}

}  // namespace sft::client
