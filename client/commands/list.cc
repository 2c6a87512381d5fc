#include <fmt/format.h>

#include <algorithm>

#include "client/base/job_group.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "common/base/json.h"
#include "common/base/money.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

// Further jobs the server does not count.
constexpr int kMaxCounted = 10'000;

struct ListOptions {
  std::vector<std::string> states;
  std::string sweep;
  std::string group;
  std::string owner;
  std::string match;
  std::string filter;
  std::string sort = "submitted";
  bool reverse = false;
  int limit = 50;
  std::string project;
};

// Times from the latest, names from the first.
std::string OrderBy(const ListOptions& options) {
  const bool descending = (options.sort != "name") != options.reverse;
  return options.sort + (descending ? " desc" : "");
}

// An earlier server would list others, and in its own order.
absl::Status CheckAsked(const ListOptions& options, const v1::ListJobsResponse& first) {
  const bool asked = !options.owner.empty() || !options.match.empty() || options.reverse ||
                     options.sort != "submitted";
  if (!asked || first.jobs().empty() || first.total() > 0) return absl::OkStatus();
  return FailedPrecondition(
      "the server is older than --owner, --match, --sort and --reverse: upgrade it");
}

std::string ProgressText(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  if (progress.total_steps() == 0) return progress.phase().empty() ? "-" : progress.phase();
  if (CountsAnswers(job.kind())) {
    return fmt::format("{}/{} answers", progress.step(), progress.total_steps());
  }
  const std::string steps = fmt::format("{}/{}", progress.step(), progress.total_steps());
  return progress.step() == 0 ? steps : fmt::format("{} loss {:.3f}", steps, progress.loss());
}

// With what they cost where any has a price.
std::string TableOf(const std::vector<v1::Job>& jobs) {
  const bool costs = std::ranges::any_of(jobs, [](const v1::Job& job) { return job.has_cost(); });
  std::vector<std::string> header = {"JOB",     "NAME",      "STATE", "PROGRESS",
                                     "VARIANT", "SUBMITTED", "REASON"};
  if (costs) header.insert(header.end() - 1, "COST");
  Table table(header);
  for (const v1::Job& job : jobs) {
    std::vector<std::string> row = {
        ShortName(job.name()), job.display_name(), StateName(job.state()),
        ProgressText(job),     job.variant(),      Utc(job.create_time()),
        job.reason()};
    if (costs) {
      const v1::Cost& cost = job.cost();
      row.insert(row.end() - 1, job.has_cost() ? MoneyText(cost.micros(), cost.currency()) : "-");
    }
    table.Add(row);
  }
  return table.Render();
}

// `whole`: with all that lists have, not only what the table shows.
absl::StatusOr<v1::ListJobsRequest> RequestOf(const ListOptions& options, bool whole) {
  v1::ListJobsRequest request;
  for (const std::string& name : options.states) {
    v1::Job::State state;
    if (!v1::Job::State_Parse(name, &state)) {
      return InvalidArgument(
          fmt::format("--state {}: must be PENDING, PREPARING, RUNNING, CANCELLING, SUCCEEDED, "
                      "FAILED or CANCELLED",
                      name));
    }
    request.add_states(state);
  }
  request.set_sweep(options.sweep);
  request.set_group(options.group);
  request.set_project(options.project);
  request.set_owner(options.owner);
  request.set_query(options.match);
  request.set_order_by(OrderBy(options));
  request.set_filter(options.filter);
  request.set_count(true);
  if (whole) return request;
  for (const char* const field : {"state", "reason", "display_name", "variant", "create_time",
                                  "kind", "progress", "cost", "group"}) {
    request.add_fields(field);
  }
  return request;
}

// Whether a sweep or group without such jobs exists at all.
absl::Status CheckExists(Connection& connection, const ListOptions& options) {
  if (options.sweep.empty() && options.group.empty()) return absl::OkStatus();
  v1::ListJobsRequest any;
  any.set_sweep(options.sweep);
  any.set_group(options.group);
  any.set_page_size(1);
  SFT_ASSIGN_OR_RETURN(const v1::ListJobsResponse page,
                       connection.Call(&v1::JobService::Stub::ListJobs, any));
  if (!page.jobs().empty()) return absl::OkStatus();
  if (options.sweep.empty()) return NoGroup(options.group);
  return NotFound(
      fmt::format("no sweep \"{}\": `sftctl status JOB` names that of a job", options.sweep));
}

ExitCode List(Connection& connection, const ListOptions& options, bool json) {
  absl::StatusOr<v1::ListJobsRequest> request = RequestOf(options, json);
  if (!request.ok()) return Fail(connection, request.status());
  int total = 0;
  std::vector<v1::Job> jobs;
  Json list = Json::array();
  int left = options.limit;
  while (left > 0) {
    request->set_page_size(left);
    const auto page = connection.Call(&v1::JobService::Stub::ListJobs, *request);
    if (!page.ok()) return Fail(connection, page.status());
    absl::Status heeded = CheckGroup(options.group, *page);
    heeded.Update(CheckFiltered(*request, *page));
    if (request->count()) heeded.Update(CheckAsked(options, *page));
    if (!heeded.ok()) return Fail(connection, heeded);
    if (request->count()) total = page->total();
    request->set_count(false);
    for (const v1::Job& job : page->jobs()) {
      if (json) list.push_back(JobJson(job));
      if (!json) jobs.push_back(job);
    }
    left -= page->jobs_size();
    if (page->next_page_token().empty() || page->jobs().empty()) break;
    request->set_page_token(page->next_page_token());
  }
  const int shown = options.limit - left;
  const absl::Status exists = shown > 0 ? absl::OkStatus() : CheckExists(connection, options);
  if (!exists.ok()) return Fail(connection, exists);
  connection.console().out << (json ? DumpJson(list, 2) + "\n" : TableOf(jobs));
  if (total > shown) {
    connection.console().err << fmt::format("{} of {}{} jobs; --limit shows more\n", shown, total,
                                            total < kMaxCounted ? "" : " or more");
  }
  return kSucceeded;
}

}  // namespace

void AddList(Command& app, Session& session) {
  Command* command = app.AddCommand(
      "list", "List jobs, newest first",
      "sftctl list --filter \"state=running,pending owner=ann llama\" --sort started");
  auto options = std::make_shared<ListOptions>();
  command->AddOption("--filter", options->filter,
                     "Only jobs like this: state=, kind=, owner=, project=, group=, sweep= with a "
                     "value, and text of their id, name, owner, variant or reason");
  command->AddOption("--state", options->states, "Only jobs in this state; may be repeated");
  command->AddOption("--sweep", options->sweep, "Only jobs of this sweep");
  command->AddOption("--group", options->group, "Only jobs of this group (job.group)");
  command->AddOption("--owner", options->owner, "Only jobs of this user");
  command->AddOption("--match", options->match,
                     "Only jobs with this text in their name or id, in capital or small letters");
  command
      ->AddOption("--sort", options->sort,
                  "Order: submitted, started or ended, the latest first, or name")
      ->Among({"submitted", "started", "ended", "name"})
      ->ShowDefault();
  command->AddFlag("--reverse", options->reverse, "The other way round");
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
