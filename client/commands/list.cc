#include <fmt/format.h>

#include "client/base/job_group.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "common/base/json.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

struct ListOptions {
  std::vector<std::string> states;
  std::string sweep;
  std::string group;
  int limit = 50;
  std::string project;
};

std::string ProgressText(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  if (progress.total_steps() == 0) return progress.phase().empty() ? "-" : progress.phase();
  if (CountsAnswers(job.kind())) {
    return fmt::format("{}/{} answers", progress.step(), progress.total_steps());
  }
  return fmt::format("{}/{} loss {:.3f}", progress.step(), progress.total_steps(), progress.loss());
}

ExitCode List(Connection& connection, const ListOptions& options, bool json) {
  v1::ListJobsRequest request;
  for (const std::string& name : options.states) {
    v1::Job::State state;
    if (!v1::Job::State_Parse(name, &state)) {
      return Fail(
          connection,
          InvalidArgument(fmt::format(
              "--state {}: must be PENDING, PREPARING, RUNNING, CANCELLING, SUCCEEDED, FAILED "
              "or CANCELLED",
              name)));
    }
    request.add_states(state);
  }
  request.set_sweep(options.sweep);
  request.set_group(options.group);
  request.set_project(options.project);
  Table table({"JOB", "NAME", "STATE", "PROGRESS", "VARIANT", "SUBMITTED", "REASON"});
  Json list = Json::array();
  int left = options.limit;
  while (left > 0) {
    request.set_page_size(left);
    const auto page = connection.Call(&v1::JobService::Stub::ListJobs, request);
    if (!page.ok()) return Fail(connection, page.status());
    const absl::Status grouped = CheckGroup(options.group, *page);
    if (!grouped.ok()) return Fail(connection, grouped);
    for (const v1::Job& job : page->jobs()) {
      if (json) list.push_back(JobJson(job));
      table.Add({ShortName(job.name()), job.display_name(), StateName(job.state()),
                 ProgressText(job), job.variant(), Utc(job.create_time()), job.reason()});
    }
    left -= page->jobs_size();
    if (page->next_page_token().empty() || page->jobs().empty()) break;
    request.set_page_token(page->next_page_token());
  }
  if ((!options.sweep.empty() || !options.group.empty()) && left == options.limit) {
    // Either the sweep or group has no jobs in these states, or it does not exist.
    v1::ListJobsRequest any;
    any.set_sweep(options.sweep);
    any.set_group(options.group);
    any.set_page_size(1);
    const auto page = connection.Call(&v1::JobService::Stub::ListJobs, any);
    if (!page.ok()) return Fail(connection, page.status());
    if (page->jobs().empty() && options.sweep.empty()) {
      return Fail(connection, NoGroup(options.group));
    }
    if (page->jobs().empty()) {
      return Fail(connection,
                  NotFound(fmt::format("no sweep \"{}\": `sftctl status JOB` names that of a job",
                                       options.sweep)));
    }
  }
  connection.console().out << (json ? DumpJson(list, 2) + "\n" : table.Render());
  return kSucceeded;
}

}  // namespace

void AddList(Command& app, Session& session) {
  Command* command = app.AddCommand("list", "List jobs, newest first",
                                    "sftctl list --state RUNNING --state PENDING");
  auto options = std::make_shared<ListOptions>();
  command->AddOption("--state", options->states, "Only jobs in this state; may be repeated");
  command->AddOption("--sweep", options->sweep, "Only jobs of this sweep");
  command->AddOption("--group", options->group, "Only jobs of this group (job.group)");
  command->AddOption("--limit", options->limit, "Maximum number of jobs")
      ->WholeNumber(1)
      ->ShowDefault();
  AddProjectOption(command, options->project);
  AddJsonFlag(command, session);
  command->Run([&session, options](Connection& connection) {
    return List(connection, *options, session.json);
  });
}

}  // namespace sft::client
