#include <fmt/format.h>

#include <set>
#include <utility>

#include "client/base/interrupt.h"
#include "client/base/job_follow.h"
#include "client/base/job_request.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/job_hooks.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "common/base/ids.h"
#include "common/base/json.h"
#include "sft/v1/job_service.grpc.pb.h"

// Commands checkpoint, checkpoints and resume.

namespace sft::client {
namespace {

struct CheckpointOptions {
  std::string job;
  bool wait = false;
  std::string timeout;
  std::string request_id;
};

absl::StatusOr<v1::ListCheckpointsResponse> ListOf(Connection& connection, const std::string& job) {
  v1::ListCheckpointsRequest request;
  request.set_name(job);
  return connection.Call(&v1::JobService::Stub::ListCheckpoints, request);
}

// Attempt and step of the checkpoints that existed before.
using Known = std::set<std::pair<int, int64_t>>;

// The checkpoint that answers the request, if it is committed: a new one, of the requested step or
// a later one, or of a later attempt, which may have begun at an earlier step. Times are not
// compared, because the server's clock may be set meanwhile.
absl::StatusOr<std::optional<v1::Checkpoint>> FindAnswer(Connection& connection,
                                                         const std::string& job, const Known& known,
                                                         const v1::CheckpointJobResponse& asked) {
  SFT_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse list, ListOf(connection, job));
  for (const v1::Checkpoint& checkpoint : list.checkpoints()) {
    if (known.contains({checkpoint.attempt(), checkpoint.step()})) continue;
    if (checkpoint.step() >= asked.step() || checkpoint.attempt() > asked.job().attempt()) {
      return std::optional(checkpoint);
    }
  }
  return std::optional<v1::Checkpoint>();
}

ExitCode Report(Connection& connection, const v1::Checkpoint& checkpoint, bool json) {
  connection.console().out << (json ? DumpJson(CheckpointJson(checkpoint), 2) + "\n"
                                    : fmt::format("checkpoint of step {} ({}, on {})\n",
                                                  checkpoint.step(), Bytes(checkpoint.bytes()),
                                                  checkpoint.place()));
  return kSucceeded;
}

// Checks each time the job changes: a commit is a change.
ExitCode WaitForAnswer(Connection& connection, const CheckpointOptions& options, const Known& known,
                       const v1::CheckpointJobResponse& asked, bool json) {
  FollowOptions follow;
  if (!options.timeout.empty()) {
    const absl::StatusOr<std::chrono::seconds> timeout = ParseDuration(options.timeout);
    if (!timeout.ok()) return Fail(connection, Annotate(timeout.status(), "--timeout"));
    follow.timeout = *timeout;
  }
  absl::StatusOr<std::optional<v1::Checkpoint>> found = std::optional<v1::Checkpoint>();
  FollowHandlers handlers;
  handlers.on_metric = [](const v1::Metric&) {};
  handlers.on_job = [&](const v1::Job&) {
    if (found.ok() && !found->has_value())
      found = FindAnswer(connection, options.job, known, asked);
  };
  follow.enough = [&] { return !found.ok() || found->has_value(); };
  const absl::StatusOr<v1::Job> job = FollowJob(connection, options.job, follow, handlers);
  if (!found.ok()) return Fail(connection, found.status());
  if (found->has_value()) return Report(connection, **found, json);
  if (!job.ok()) {
    if (Interrupt::Raised()) return Detached(connection, "sftctl checkpoints " + options.job);
    return Fail(connection, job.status());
  }
  connection.console().err << "the job ended before it wrote one\n";
  PrintEnding(connection, *job);
  return job->state() == v1::Job::SUCCEEDED ? kInternal : ExitCodeOf(*job);
}

ExitCode AskForOne(Connection& connection, const CheckpointOptions& options, bool json) {
  v1::CheckpointJobRequest request;
  request.set_name(options.job);
  request.set_request_id(options.request_id.empty() ? RandomUuid() : options.request_id);
  Known known;
  if (options.wait) {
    const auto before = ListOf(connection, options.job);
    if (!before.ok()) return Fail(connection, before.status());
    for (const v1::Checkpoint& each : before->checkpoints()) {
      known.emplace(each.attempt(), each.step());
    }
  }
  const auto asked = connection.Call(&v1::JobService::Stub::CheckpointJob, request);
  if (!asked.ok()) return Fail(connection, asked.status());
  if (options.wait) return WaitForAnswer(connection, options, known, *asked, json);
  if (json) {
    connection.console().out << DumpJson(JobJson(asked->job()), 2) << "\n";
  } else {
    connection.console().out << fmt::format(
        "asked {} for a checkpoint after step {}; `sftctl checkpoints {}` shows it when it is "
        "there\n",
        ShortName(asked->job().name()), asked->step(), ShortName(asked->job().name()));
  }
  return kSucceeded;
}

ExitCode List(Connection& connection, const std::string& job, bool json) {
  const auto list = ListOf(connection, job);
  if (!list.ok()) return Fail(connection, list.status());
  Table table({"STEP", "ATTEMPT", "WHY", "SIZE", "METRIC", "WHERE", "COMMITTED", "NOTE"});
  Json all = Json::array();
  for (const v1::Checkpoint& each : list->checkpoints()) {
    all.push_back(CheckpointJson(each));
    table.Add({std::to_string(each.step()), std::to_string(each.attempt()), each.reason(),
               Bytes(each.bytes()), each.has_metric() ? fmt::format("{:.4f}", each.metric()) : "-",
               each.place(), Utc(each.commit_time()),
               !each.problem().empty() ? each.problem()
               : each.best()           ? "best so far then"
                                       : ""});
  }
  connection.console().out << (json ? DumpJson(all, 2) + "\n" : table.Render());
  return kSucceeded;
}

struct ResumeOptions {
  std::string job;
  int64_t step = 0;
  bool allow_changes = false;
  std::optional<std::string> time_limit;
  std::optional<std::string> variant;
  std::vector<std::string> set;
  std::string request_id;
};

ExitCode Resume(Connection& connection, const ResumeOptions& options, bool json) {
  v1::ResumeJobRequest request;
  request.set_name(options.job);
  request.set_step(options.step);
  request.set_allow_changes(options.allow_changes);
  if (options.time_limit.has_value()) {
    const absl::StatusOr<std::chrono::seconds> limit = ParseDuration(*options.time_limit);
    if (!limit.ok()) return Fail(connection, Annotate(limit.status(), "--time-limit"));
    request.set_time_limit_seconds(limit->count());
  }
  if (options.variant.has_value()) {
    *request.add_overrides() =
        MakeOverride(v1::Override::FLAG, "compute.variant", *options.variant, "--variant");
  }
  for (const std::string& assignment : options.set) {
    const absl::StatusOr<v1::Override> override = ParseSet(assignment);
    if (!override.ok()) return Fail(connection, override.status());
    *request.add_overrides() = *override;
  }
  request.set_request_id(options.request_id.empty() ? RandomUuid() : options.request_id);
  const auto job = connection.Call(&v1::JobService::Stub::ResumeJob, request);
  if (!job.ok()) return Fail(connection, job.status());
  if (json) {
    connection.console().out << DumpJson(JobJson(*job), 2) << "\n";
    return kSucceeded;
  }
  connection.console().out << ShortName(job->name()) << "\n";
  connection.console().err << fmt::format(
      "goes on with {} from {}; watch it with `sftctl status {} --watch`\n",
      ShortName(job->resumed_from()),
      options.step > 0 ? fmt::format("step {}", options.step) : "its newest checkpoint",
      ShortName(job->name()));
  PrintSecrets(connection.console().err, *job);
  return kSucceeded;
}

void AddAsk(Command& app, Session& session) {
  Command* command =
      app.AddCommand("checkpoint", "Ask a running job to save its training state now",
                     "sftctl checkpoint job-abc --wait");
  auto options = std::make_shared<CheckpointOptions>();
  command->AddOption("JOB", options->job, "Job")->Required();
  command->AddFlag("--wait", options->wait, "Wait until the checkpoint is committed");
  command->AddOption("--timeout", options->timeout,
                     "With --wait: stop waiting after this time (60s, 5m), with exit code 4");
  command->AddOption(
      "--request-id", options->request_id,
      "Asking again with the same id makes no second checkpoint (default: a random id)");
  AddJsonFlag(command, session);
  command->Run([&session, options](Connection& connection) {
    return AskForOne(connection, *options, session.json);
  });
}

void AddListOf(Command& app, Session& session) {
  Command* command =
      app.AddCommand("checkpoints", "List the saved training states of a job, newest first",
                     "sftctl checkpoints job-abc");
  auto job = std::make_shared<std::string>();
  command->AddOption("JOB", *job, "Job")->Required();
  AddJsonFlag(command, session);
  command->Run(
      [&session, job](Connection& connection) { return List(connection, *job, session.json); });
}

void AddResume(Command& app, Session& session) {
  Command* command =
      app.AddCommand("resume", "Continue a failed or cancelled job from a checkpoint, as a new job",
                     "sftctl resume job-abc --from 400 --set compute.gpu_count=2");
  auto options = std::make_shared<ResumeOptions>();
  command->AddOption("JOB", options->job, "Job that has ended")->Required();
  command->AddOption("--from", options->step, "Step of the checkpoint (default: the newest)")
      ->WholeNumber(1);
  command->AddFlag(
      "--allow-changes", options->allow_changes,
      "Continue even if data, engine or job differ from the checkpoint's, where that can work");
  command->AddOption("--time-limit", options->time_limit,
                     "Most time that the new job may hold its GPUs, for example 8h; 0s: no limit "
                     "(default: unchanged)");
  command->AddOption("--variant", options->variant,
                     "Run on other GPUs, for example H100-4x (compute.variant)");
  command->AddOption("--set", options->set,
                     "key=value: change one key of the job (docs/config.md); may be repeated");
  command->AddOption("--request-id", options->request_id,
                     "Resuming again with the same id returns the same job (default: a random id)");
  AddJsonFlag(command, session);
  command->Run([&session, options](Connection& connection) {
    return Resume(connection, *options, session.json);
  });
}

}  // namespace

void AddCheckpoints(Command& app, Session& session) {
  AddAsk(app, session);
  AddListOf(app, session);
  AddResume(app, session);
}

}  // namespace sft::client
