#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <optional>

#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "common/base/json.h"
#include "common/base/money.h"
#include "common/io/file.h"
#include "sft/v1/scheduling_service.grpc.pb.h"

namespace sft::client {
namespace {

struct ProjectOptions {
  std::string name;
  std::optional<double> share;
  std::optional<int> max_gpus, max_running, max_pending;
  std::optional<std::string> max_priority;
  std::optional<std::string> hub_token_file;
  bool no_hub_token = false;
  std::vector<std::string> secrets, no_secrets;
  std::optional<std::string> budget;
  std::string budget_period, on_reached;
  std::optional<int> warn_at;
  bool no_budget = false;
};

constexpr int64_t kMostBudget = 1'000'000'000'000 * kMoneyUnit;

Json BudgetJson(const v1::Budget& budget) {
  return {{"amount_micros", budget.amount_micros()},
          {"currency", budget.currency()},
          {"period", budget.period() == v1::Budget::MONTH ? "month" : "total"},
          {"period_start", Utc(budget.period_start())},
          {"period_end", budget.has_period_end() ? Json(Utc(budget.period_end())) : Json(nullptr)},
          {"warn_percent", budget.warn_percent()},
          {"on_reached", budget.on_reached() == v1::Budget::STOP ? "stop" : "hold"},
          {"spent_micros", budget.spent_micros()},
          {"reached", budget.reached()}};
}

// "312.40 of 1000.00 EUR"
std::string SpentText(const v1::Budget& budget) {
  return fmt::format("{} of {}", MoneyText(budget.spent_micros(), ""),
                     MoneyText(budget.amount_micros(), budget.currency()));
}

Json ProjectJson(const v1::Project& project) {
  return {
      {"project", project.name()},
      {"share", project.share()},
      {"max_gpus", project.max_gpus()},
      {"max_running", project.max_running()},
      {"max_pending", project.max_pending()},
      {"max_priority", project.max_priority()},
      {"gpus", project.gpus()},
      {"running", project.running()},
      {"pending", project.pending()},
      {"decayed_gpu_hours", project.decayed_gpu_hours()},
      {"budget", project.has_budget() ? BudgetJson(project.budget()) : Json(nullptr)},
      {"has_hub_token", project.has_hub_token()},
      {"secrets", std::vector<std::string>(project.secrets().begin(), project.secrets().end())}};
}

// "12 of 64", "12" without a limit.
std::string Used(int used, int limit) {
  return limit == 0 ? std::to_string(used) : fmt::format("{} of {}", used, limit);
}

void Print(Connection& connection, const std::vector<v1::Project>& projects, bool json) {
  std::ostream& out = connection.console().out;
  if (json) {
    Json list = Json::array();
    for (const v1::Project& project : projects) list.push_back(ProjectJson(project));
    out << DumpJson(list, 2) << "\n";
    return;
  }
  const bool budgets = std::ranges::any_of(projects, &v1::Project::has_budget);
  std::vector<std::string> header = {"PROJECT", "SHARE",        "GPUS",          "RUNNING",
                                     "WAITING", "MAX PRIORITY", "USED GPU HOURS"};
  if (budgets) header.push_back("SPENT");
  Table table(header);
  for (const v1::Project& project : projects) {
    std::vector<std::string> row = {project.name(),
                                    fmt::format("{:g}", project.share()),
                                    Used(project.gpus(), project.max_gpus()),
                                    Used(project.running(), project.max_running()),
                                    Used(project.pending(), project.max_pending()),
                                    project.max_priority(),
                                    fmt::format("{:.1f}", project.decayed_gpu_hours())};
    if (budgets) row.push_back(project.has_budget() ? SpentText(project.budget()) : "-");
    table.Add(row);
  }
  out << table.Render();
}

ExitCode ListProjects(Connection& connection, bool json) {
  const auto all =
      connection.Call(&v1::SchedulingService::Stub::ListProjects, v1::ListProjectsRequest());
  if (!all.ok()) return Fail(connection, all.status());
  Print(connection, {all->projects().begin(), all->projects().end()}, json);
  return kSucceeded;
}

void PrintBudget(const v1::Budget& budget,
                 const std::function<void(const char*, const std::string&)>& line) {
  const int64_t percent =
      static_cast<int64_t>(100.0 * static_cast<double>(budget.spent_micros()) /
                           static_cast<double>(std::max<int64_t>(1, budget.amount_micros())));
  line("budget", fmt::format("{} ({} %){}", SpentText(budget), percent,
                             budget.reached() ? ": it is used up" : ""));
  line("", budget.has_period_end()
               ? fmt::format("of the month from {} to {}", Utc(budget.period_start()),
                             Utc(budget.period_end()))
               : fmt::format("in total, since {}", Utc(budget.period_start())));
  line("", fmt::format(
               "warns at {} %; when it is used up, no more jobs start{}", budget.warn_percent(),
               budget.on_reached() == v1::Budget::STOP ? " and running ones stop after a checkpoint"
                                                       : ""));
}

ExitCode ShowProject(Connection& connection, const std::string& name, bool json) {
  const auto all =
      connection.Call(&v1::SchedulingService::Stub::ListProjects, v1::ListProjectsRequest());
  if (!all.ok()) return Fail(connection, all.status());
  const auto found = std::ranges::find(all->projects(), name, &v1::Project::name);
  if (found == all->projects().end()) {
    return Fail(connection, NotFound(fmt::format("no project \"{}\" that has a job, limits or a "
                                                 "budget, and that you may see",
                                                 name)));
  }
  std::ostream& out = connection.console().out;
  if (json) {
    out << DumpJson(ProjectJson(*found), 2) << "\n";
    return kSucceeded;
  }
  const auto line = [&](const char* label, const std::string& value) {
    out << fmt::format("{:<13} {}\n", label, OneLine(value));
  };
  line("project", found->name());
  line("share", fmt::format("{:g}", found->share()));
  line("GPUs", Used(found->gpus(), found->max_gpus()));
  line("running", Used(found->running(), found->max_running()));
  line("waiting", Used(found->pending(), found->max_pending()));
  line("max priority", found->max_priority());
  line("used", fmt::format("{:.1f} GPU-hours, those of 30 days ago counted half",
                           found->decayed_gpu_hours()));
  if (found->has_budget()) PrintBudget(found->budget(), line);
  if (found->has_hub_token()) line("hub token", "kept");
  for (const std::string& secret : found->secrets()) line("secret", secret);
  return kSucceeded;
}

// What is given of a budget.
absl::Status AddBudget(const ProjectOptions& options, v1::SetProjectRequest& request) {
  request.set_no_budget(options.no_budget);
  if (options.budget) {
    const std::optional<int64_t> micros = ParseMoney(*options.budget, kMostBudget);
    if (!micros.has_value() || *micros == 0) {
      return InvalidArgument(fmt::format(
          "--budget {}: give an amount above 0, such as 1000 or 99.50", *options.budget));
    }
    request.mutable_budget()->set_amount_micros(*micros);
  }
  if (!options.budget_period.empty()) {
    request.mutable_budget()->set_period(options.budget_period == "month" ? v1::Budget::MONTH
                                                                          : v1::Budget::TOTAL);
  }
  if (options.warn_at) {
    if (*options.warn_at < 1 || *options.warn_at > 100) {
      return InvalidArgument("--budget-warn-at: give 1 to 100 percent");
    }
    request.mutable_budget()->set_warn_percent(*options.warn_at);
  }
  if (!options.on_reached.empty()) {
    request.mutable_budget()->set_on_reached(options.on_reached == "stop" ? v1::Budget::STOP
                                                                          : v1::Budget::HOLD);
  }
  return absl::OkStatus();
}

// From a file, or from standard input for "-": arguments can be seen by everybody on the machine.
absl::StatusOr<std::string> ReadSecret(const std::string& file, const char* what) {
  constexpr int64_t kMostBytes = 4096;
  std::string secret;
  if (file == "-") {
    std::getline(std::cin, secret);
  } else {
    SFT_ASSIGN_OR_RETURN(secret, io::ReadFile(file, kMostBytes));
  }
  secret.erase(secret.find_last_not_of(" \r\n\t") + 1);
  if (secret.empty()) return InvalidArgument(fmt::format("{} holds no {}", file, what));
  return secret;
}

// "NAME=FILE" each, and names to forget.
absl::Status AddSecrets(const ProjectOptions& options, v1::SetProjectRequest& request) {
  for (const std::string& given : options.secrets) {
    const size_t equals = given.find('=');
    if (equals == std::string::npos) {
      return InvalidArgument(
          fmt::format("--secret {}: give NAME=FILE, a name and the file with the secret", given));
    }
    v1::ProjectSecret& secret = *request.add_secrets();
    secret.set_name(given.substr(0, equals));
    SFT_ASSIGN_OR_RETURN(*secret.mutable_value(), ReadSecret(given.substr(equals + 1), "secret"));
  }
  for (const std::string& name : options.no_secrets) request.add_secrets()->set_name(name);
  return absl::OkStatus();
}

ExitCode SetProject(Connection& connection, const ProjectOptions& options, bool json) {
  v1::SetProjectRequest request;
  request.set_name(options.name);
  if (options.share) request.set_share(*options.share);
  if (options.max_gpus) request.set_max_gpus(*options.max_gpus);
  if (options.max_running) request.set_max_running(*options.max_running);
  if (options.max_pending) request.set_max_pending(*options.max_pending);
  if (options.max_priority) request.set_max_priority(*options.max_priority);
  if (options.no_hub_token) request.set_hub_token("");
  if (options.hub_token_file) {
    const auto token = ReadSecret(*options.hub_token_file, "token");
    if (!token.ok()) return Fail(connection, token.status());
    request.set_hub_token(*token);
  }
  absl::Status added = AddSecrets(options, request);
  added.Update(AddBudget(options, request));
  if (!added.ok()) return Fail(connection, added);
  const auto project = connection.Call(&v1::SchedulingService::Stub::SetProject, request);
  if (!project.ok()) return Fail(connection, project.status());
  Print(connection, {*project}, json);
  return kSucceeded;
}

void AddBudgetOptions(Command* set, const std::shared_ptr<ProjectOptions>& options) {
  Option* none = set->AddFlag("--no-budget", options->no_budget, "No budget any more");
  set->AddOption("--budget", options->budget,
                 "What its GPUs may cost in the currency of the prices (1000, 99.50): when it is "
                 "used up, no more jobs start")
      ->Excludes(none);
  set->AddOption("--budget-period", options->budget_period,
                 "month (of the calendar, in UTC; of a new budget) or total (from now on)")
      ->Among({"month", "total"})
      ->Excludes(none);
  set->AddOption("--budget-warn-at", options->warn_at,
                 "Percent of the budget at which to warn; of a new one 80")
      ->Excludes(none);
  set->AddOption("--on-budget-reached", options->on_reached,
                 "hold: running jobs go on (of a new budget); stop: they write a checkpoint and "
                 "wait")
      ->Among({"hold", "stop"})
      ->Excludes(none);
}

}  // namespace

void AddProject(Command& admin, Session& session) {
  Command* project = admin.AddCommand("project", "Shares, limits and usage of projects",
                                      "sftctl admin project list");
  project->RequireCommand();
  Command* list = project->AddCommand(
      "list", "List projects with their shares, limits and usage; usage of 30 days ago counts half",
      "sftctl admin project list --json");
  AddJsonFlag(list, session);
  list->Run([&session](Connection& connection) { return ListProjects(connection, session.json); });
  Command* show = project->AddCommand("show", "Show a project with its limits, usage and budget",
                                      "sftctl admin project show vision");
  auto shown = std::make_shared<std::string>();
  show->AddOption("PROJECT", *shown, "Project")->Required();
  AddJsonFlag(show, session);
  show->Run([&session, shown](Connection& connection) {
    return ShowProject(connection, *shown, session.json);
  });
  Command* set = project->AddCommand("set", "Change a project's share, limits or budget",
                                     "sftctl admin project set vision --share 2 --max-gpus 64");
  auto options = std::make_shared<ProjectOptions>();
  set->AddOption("PROJECT", options->name, "Project")->Required();
  set->AddOption("--share", options->share,
                 "Share of the fleet, relative to other projects (default: 1)");
  set->AddOption("--max-gpus", options->max_gpus, "Most GPUs in use at once; 0: no limit")
      ->WholeNumber(0);
  set->AddOption("--max-running", options->max_running, "Most jobs that run at once; 0: no limit")
      ->WholeNumber(0);
  set->AddOption("--max-pending", options->max_pending, "Most jobs that wait; 0: no limit")
      ->WholeNumber(0);
  set->AddOption("--max-priority", options->max_priority,
                 "Highest priority that its jobs may have: low, normal, high (default) or urgent");
  Option* token = set->AddOption(
      "--hub-token-file", options->hub_token_file,
      "File with the token with which nodes download models for its jobs; - reads it from standard "
      "input");
  set->AddFlag("--no-hub-token", options->no_hub_token, "Forget that token")->Excludes(token);
  set->AddOption("--secret", options->secrets,
                 "NAME=FILE: a secret by which the server calls others for its jobs, such as a "
                 "judge's API key; - as FILE reads it from standard input");
  set->AddOption("--no-secret", options->no_secrets, "Forget the secret of this name");
  AddBudgetOptions(set, options);
  AddJsonFlag(set, session);
  set->Run([&session, options](Connection& connection) {
    return SetProject(connection, *options, session.json);
  });
}

}  // namespace sft::client
