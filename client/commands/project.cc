#include <fmt/format.h>

#include <iostream>
#include <optional>

#include "client/commands/commands.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "common/base/json.h"
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
};

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
  Table table({"PROJECT", "SHARE", "GPUS", "RUNNING", "WAITING", "MAX PRIORITY", "USED GPU HOURS"});
  for (const v1::Project& project : projects) {
    table.Add({project.name(), fmt::format("{:g}", project.share()),
               Used(project.gpus(), project.max_gpus()),
               Used(project.running(), project.max_running()),
               Used(project.pending(), project.max_pending()), project.max_priority(),
               fmt::format("{:.1f}", project.decayed_gpu_hours())});
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
  if (const absl::Status added = AddSecrets(options, request); !added.ok()) {
    return Fail(connection, added);
  }
  const auto project = connection.Call(&v1::SchedulingService::Stub::SetProject, request);
  if (!project.ok()) return Fail(connection, project.status());
  Print(connection, {*project}, json);
  return kSucceeded;
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
  Command* set = project->AddCommand("set", "Change a project's share or limits",
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
  AddJsonFlag(set, session);
  set->Run([&session, options](Connection& connection) {
    return SetProject(connection, *options, session.json);
  });
}

}  // namespace sft::client
