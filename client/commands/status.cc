#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "client/base/interrupt.h"
#include "client/base/job_follow.h"
#include "client/base/one_job.h"
#include "client/commands/commands.h"
#include "client/output/cost.h"
#include "client/output/format.h"
#include "client/output/job_hooks.h"
#include "client/output/json.h"
#include "client/output/progress.h"
#include "client/output/text.h"
#include "client/output/wait_text.h"
#include "common/base/json.h"
#include "sft/v1/job_service.grpc.pb.h"
#include "sft/v1/scheduling_service.grpc.pb.h"

namespace sft::client {
namespace {

struct StatusOptions {
  std::string job;
  bool watch = false;
};

// "1 on node-a, steps 0 to 12: FAILED rank_killed: rank 1 was killed; restarted: 1 of 10 ..."
std::string AttemptLine(const v1::Attempt& attempt, v1::Job::Kind kind) {
  std::string nodes;
  for (const std::string& node : attempt.nodes()) nodes += (nodes.empty() ? "" : ", ") + node;
  std::string text = fmt::format("{} on {}, {} {} to {}: {}", attempt.number(), nodes,
                                 CountsAnswers(kind) ? "answers" : "steps", attempt.first_step(),
                                 attempt.last_step(), attempt.state());
  const v1::Verdict& verdict = attempt.verdict();
  if (verdict.code().empty() || verdict.domain() == v1::Verdict::NONE) return text;
  text += fmt::format(" {}: {}", verdict.code(), verdict.message());
  return verdict.action().empty() ? text : text + "; " + verdict.action();
}

// Why a job waits; absent for one that does not, and from servers that do not say it.
std::optional<v1::WaitExplanation> WaitOf(Connection& connection, const v1::Job& job) {
  if (job.state() != v1::Job::PENDING) return std::nullopt;
  v1::ExplainWaitRequest request;
  request.set_name(job.name());
  const auto wait = connection.Call(&v1::SchedulingService::Stub::ExplainWait, request);
  if (wait.ok()) return *wait;
  // It may have started meanwhile.
  if (!absl::IsUnimplemented(wait.status()) && !absl::IsFailedPrecondition(wait.status())) {
    connection.console().err << "why it waits: " << Message(wait.status()) << "\n";
  }
  return std::nullopt;
}

void PrintJob(Connection& connection, const v1::Job& job) {
  std::ostream& out = connection.console().out;
  const auto line = [&](const char* label, const std::string& value) {
    if (!value.empty()) out << fmt::format("{:<10} {}\n", label, OneLine(value));
  };
  line("job",
       ShortName(job.name()) + (job.display_name().empty() ? "" : " (" + job.display_name() + ")"));
  line("state", StateName(job.state()) + (job.reason().empty() ? "" : ": " + job.reason()));
  if (!job.priority().empty() && job.priority() != "normal") line("priority", job.priority());
  line("sweep", job.sweep());
  line("group", job.group());
  line("expected", OutlookText(job.outlook()));
  if (const auto wait = WaitOf(connection, job)) PrintWait(*wait, line);
  if (job.has_deadline()) {
    const bool late =
        job.outlook().has_end_time() && Seconds(job.outlook().end_time()) > Seconds(job.deadline());
    line("deadline", Utc(job.deadline()) + (late ? ", but it is expected to end later" : ""));
  }
  line("owner", job.owner() + " in " + job.project());
  line("variant", job.variant());
  if (job.attempt() > 0) {
    std::string nodes;
    for (const std::string& node : job.nodes())
      nodes += (nodes.empty() ? "" : ", ") + ShortName(node);
    line("attempt", fmt::format("{}{}", job.attempt(), nodes.empty() ? "" : " on " + nodes));
  }
  if (!job.resumed_from().empty()) {
    const bool trains = job.kind() == v1::Job::SFT;
    line(trains ? "resumed" : "checkpoint",
         fmt::format("{}step {} of {}", trains ? "from " : "", job.resumed_step(),
                     ShortName(job.resumed_from())));
  }
  if (job.attempts_size() > 1) {
    for (const v1::Attempt& attempt : job.attempts()) line("", AttemptLine(attempt, job.kind()));
  }
  if (job.kind() == v1::Job::SERVE && job.state() == v1::Job::RUNNING) {
    line("endpoint", EndpointOf(connection, ShortName(job.name())));
  }
  if (job.checkpoint_step() > 0) line("checkpoint", fmt::format("step {}", job.checkpoint_step()));
  const v1::Progress& progress = job.progress();
  if (progress.step() > 0) {
    const int width = 100 + static_cast<int>(ValuesText(progress.values()).size());
    line("progress", ProgressLine(progress, job.kind(), width));
    line("memory", RanksText(progress));
    line("network", TrafficText(progress));
  } else {
    line("progress", progress.phase());
  }
  line("cost", CostText(job));
  for (const v1::JobHook& hook : job.hooks()) line("told", JobHookText(hook));
  line("submitted", Utc(job.create_time()));
  if (job.has_start_time()) line("started", Utc(job.start_time()));
  if (job.has_end_time()) line("ended", Utc(job.end_time()));
  for (const v1::Problem& warning : job.warnings()) {
    line("warning", warning.key() + ": " + warning.message());
  }
  if (IsEnded(job.state())) PrintEnding(connection, job);
}

// The job submitted last.
absl::StatusOr<std::string> NewestJob(Connection& connection) {
  v1::ListJobsRequest request;
  request.set_page_size(1);
  SFT_ASSIGN_OR_RETURN(const v1::ListJobsResponse page,
                       connection.Call(&v1::JobService::Stub::ListJobs, request));
  if (page.jobs().empty()) return NotFound("there is no job yet: `sftctl submit FILE` makes one");
  return ShortName(page.jobs(0).name());
}

ExitCode Status(Connection& connection, const StatusOptions& options, bool json) {
  std::string name = options.job;
  if (name.empty()) {
    const absl::StatusOr<std::string> newest = NewestJob(connection);
    if (!newest.ok()) return Fail(connection, newest.status());
    name = *newest;
  }
  if (options.watch) return FollowToTheEnd(connection, name, json);
  v1::GetJobRequest request;
  request.set_name(name);
  const auto job = connection.Call(&v1::JobService::Stub::GetJob, request);
  if (!job.ok()) return Fail(connection, job.status());
  if (json) {
    Json shown = JobJson(*job);
    const auto wait = WaitOf(connection, *job);
    shown["wait"] = wait.has_value() ? WaitJson(*wait) : Json(nullptr);
    connection.console().out << DumpJson(shown, 2) << "\n";
  } else {
    PrintJob(connection, *job);
  }
  return kSucceeded;
}

}  // namespace

ExitCode Detached(Connection& connection, const std::string& command) {
  connection.console().err << fmt::format(
      "\ndetached; the job goes on. Come back with `{}`; `sftctl cancel JOB` stops it\n", command);
  return kInterrupted;
}

namespace {

// Evidence without the lines that the verdict says already, as the end of the log of a process that
// said why it ends; empty where only its heading would be left.
std::string WithoutSaid(const std::string& evidence, const std::string& said) {
  constexpr std::string_view kProgram = "sft-rank: ";
  std::vector<std::string_view> lines;
  for (size_t at = 0; at <= evidence.size();) {
    const size_t end = std::min(evidence.find('\n', at), evidence.size());
    const std::string_view line = std::string_view(evidence).substr(at, end - at);
    std::string_view text = line.substr(std::min(line.find_first_not_of(' '), line.size()));
    if (text.starts_with(kProgram)) text.remove_prefix(kProgram.size());
    if (at == 0 || text.empty() || said.find(text) == said.npos) lines.push_back(line);
    at = end + 1;
  }
  const bool heading = evidence.find('\n') != evidence.npos &&
                       std::all_of(lines.begin() + 1, lines.end(),
                                   [](std::string_view line) { return line.empty(); });
  return heading ? "" : fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace

void PrintEnding(Connection& connection, const v1::Job& job) {
  std::ostream& err = connection.console().err;
  const v1::Verdict& verdict = job.verdict();
  const std::string id = ShortName(job.name());
  if (job.state() == v1::Job::SUCCEEDED) {
    err << fmt::format("{} succeeded; get the result with `sftctl download {}`\n", id, id);
    return;
  }
  if (job.state() == v1::Job::CANCELLED) {
    err << fmt::format("{} was cancelled\n", id);
    return;
  }
  err << fmt::format("{} failed ({}): {}\n", id,
                     verdict.domain() == v1::Verdict::USER ? "user" : "infrastructure",
                     Lines(verdict.message()));
  if (verdict.rank() >= 0 && !verdict.node().empty()) {
    err << fmt::format("  blamed: rank {} on {}\n", verdict.rank(), ShortName(verdict.node()));
  }
  for (const std::string& evidence : verdict.evidence()) {
    const std::string rest = WithoutSaid(evidence, verdict.message() + "\n" + verdict.advice());
    if (!rest.empty()) err << "  " << Lines(rest) << "\n";
  }
  if (!verdict.advice().empty()) err << "  what to do: " << Lines(verdict.advice()) << "\n";
  if (!verdict.action().empty()) err << "  what was done: " << Lines(verdict.action()) << "\n";
  if (job.checkpoint_step() > 0) {
    err << fmt::format("  it can go on from step {}: `sftctl resume {}`\n", job.checkpoint_step(),
                       id);
  }
  // An attempt that ended before its processes started has no log.
  if (verdict.process() == "prepare") {
    err << fmt::format("  its log: `sftctl logs {} --prepare`\n", id);
  } else if (verdict.rank() >= 0) {
    err << fmt::format("  its log: `sftctl logs {}{}`\n", id,
                       verdict.rank() > 0 ? fmt::format(" --rank {}", verdict.rank()) : "");
  }
}

ExitCode FollowToTheEnd(Connection& connection, const std::string& name, bool json) {
  ProgressView view(connection.console());
  FollowHandlers handlers;
  handlers.on_job = [&](const v1::Job& job) {
    if (json) {
      connection.console().out << DumpJson(JobJson(job)) << std::endl;
    } else {
      view.OnJob(job);
    }
  };
  handlers.on_metric = [&](const v1::Metric& metric) { view.OnMetric(metric); };
  FollowOptions options;
  options.metrics = !json && !connection.console().terminal;
  const absl::StatusOr<v1::Job> job = FollowJob(connection, name, options, handlers);
  view.Finish();
  if (!job.ok()) {
    if (Interrupt::Raised()) {
      return Detached(connection, fmt::format("sftctl status {} --watch", name));
    }
    return Fail(connection, job.status());
  }
  PrintEnding(connection, *job);
  return ExitCodeOf(*job);
}

void AddStatus(Command& app, Session& session) {
  Command* command = app.AddCommand(
      "status", "Show one job (default: the newest): its state and the reason, progress, verdict",
      "sftctl status job-abc --watch");
  auto options = std::make_shared<StatusOptions>();
  command->AddOption("JOB", options->job, "Job (from `sftctl list`; default: the newest)");
  command->AddFlag("--watch", options->watch,
                   "Show changes until the job ends; the exit code tells its verdict");
  AddJsonFlag(command, session);
  command->Run([&session, options](Connection& connection) {
    return Status(connection, *options, session.json);
  });
}

}  // namespace sft::client
