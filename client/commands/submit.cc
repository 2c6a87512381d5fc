#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "client/commands/commands.h"
#include "client/interrupt.h"
#include "client/job_request.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/io/file.h"
#include "sft/v1/job_service.grpc.pb.h"
#include "sft/v1/scheduling_service.grpc.pb.h"

namespace sft::client {
namespace {

constexpr int64_t kMaxJobFile = 1 << 20;

struct SubmitOptions : SubmitFlags {
  std::string config;
  std::string request_id;
  std::string project;
  bool dry_run = false;
  bool follow = false;
  // Of `sweep`.
  std::vector<v1::SweepAxis> axes;
  int max_parallel = 0;
};

Json ResolutionJson(const v1::ResolveJobResponse& response) {
  Json json = {{"valid", response.problems().empty()}};
  json["problems"] = Json::array();
  for (const v1::Problem& problem : response.problems())
    json["problems"].push_back(ProblemJson(problem));
  json["warnings"] = Json::array();
  for (const v1::Problem& warning : response.warnings())
    json["warnings"].push_back(ProblemJson(warning));
  Json values = Json::object();
  for (const v1::ResolvedValue& value : response.resolved()) {
    values[value.key()] = {{"value", value.value()}, {"origin", value.origin()}};
  }
  json["values"] = values;
  // A job with problems has no resolved form.
  const Json resolved = ParseOrderedJson(response.resolved_json());
  json["resolved"] = resolved.is_discarded() ? Json(nullptr) : resolved;
  const v1::JobPlan& plan = response.plan();
  Json memory = Json::object();
  for (const v1::MemoryItem& item : plan.memory()) memory[item.category()] = item.bytes();
  json["plan"] = {{"variant", plan.variant()},
                  {"nodes", plan.nodes()},
                  {"ranks", plan.ranks()},
                  {"placement", plan.placement()},
                  {"batch", plan.batch()},
                  {"trainable_parameters", plan.trainable_parameters()},
                  {"total_parameters", plan.total_parameters()},
                  {"memory_bytes_per_rank", memory},
                  {"memory_limit_bytes", plan.memory_limit_bytes()},
                  {"execution", plan.execution()},
                  {"tokens_per_second", plan.tokens_per_second()},
                  {"outlook", plan.has_outlook() ? OutlookJson(plan.outlook()) : Json(nullptr)},
                  {"note", plan.note()}};
  return json;
}

void PrintMemory(std::ostream& out, const v1::JobPlan& plan) {
  if (plan.memory().empty()) return;
  int64_t total = 0;
  std::string parts;
  for (const v1::MemoryItem& item : plan.memory()) {
    total += item.bytes();
    parts +=
        fmt::format("{}{} {}", parts.empty() ? "" : ", ", item.category(), Bytes(item.bytes()));
  }
  if (plan.execution().empty()) {
    out << fmt::format("memory       {} a rank, activations not counted ({})\n", Bytes(total),
                       parts);
    return;
  }
  out << fmt::format("execution    {}\n", plan.execution());
  out << fmt::format("memory       {} of {} a rank at the peak ({})\n", Bytes(total),
                     Bytes(plan.memory_limit_bytes()), parts);
}

void PrintPlan(std::ostream& out, const v1::ResolveJobResponse& response) {
  Table values({"KEY", "VALUE", "FROM"});
  for (const v1::ResolvedValue& value : response.resolved()) {
    values.Add({value.key(), value.value(), value.origin()});
  }
  const v1::JobPlan& plan = response.plan();
  out << values.Render() << "\n";
  out << fmt::format("allocation   {} on {} node{}: {} rank{}; {}\n", plan.variant(), plan.nodes(),
                     plan.nodes() == 1 ? "" : "s", plan.ranks(), plan.ranks() == 1 ? "" : "s",
                     plan.placement());
  if (const std::string outlook = OutlookText(plan.outlook()); !outlook.empty()) {
    out << fmt::format("expected     {}\n", outlook);
  }
  out << fmt::format("batch        {}\n", plan.batch());
  if (plan.total_parameters() > 0) {
    out << fmt::format("parameters   {} trainable of {} ({:.3f} %)\n",
                       Count(plan.trainable_parameters()), Count(plan.total_parameters()),
                       100.0 * plan.trainable_parameters() / plan.total_parameters());
  }
  PrintMemory(out, plan);
  if (plan.tokens_per_second() > 0) {
    out << fmt::format("speed        {} tokens/s predicted\n", Count(plan.tokens_per_second()));
  }
  if (!plan.note().empty()) out << fmt::format("note         {}\n", plan.note());
}

class Submission {
 public:
  Submission(Connection& connection, const SubmitOptions& options, bool json)
      : connection_(connection), options_(options), json_(json) {}

  ExitCode Run() {
    if (const absl::Status status = Resolve(); !status.ok()) return Fail(connection_, status);
    CheckFiles();
    PrintProblems(resolution_.warnings(), "warning: ");
    if (!resolution_.problems().empty()) {
      if (json_) connection_.console().out << DumpJson(ResolutionJson(resolution_), 2) << "\n";
      PrintProblems(resolution_.problems(), "");
      connection_.console().err << fmt::format(
          "sftctl: {} problem{} in {}; `sftctl explain KEY` describes a key\n",
          resolution_.problems_size(), resolution_.problems_size() == 1 ? "" : "s", options_.file);
      return kUsage;
    }
    if (!options_.axes.empty()) return SubmitSweep();
    return options_.dry_run ? DryRun() : Submit();
  }

 private:
  absl::Status Resolve() {
    SFT_RETURN_IF_ERROR(ReadJobFile());
    SFT_ASSIGN_OR_RETURN(overrides_, CollectOverrides(options_));
    v1::ResolveJobRequest request;
    request.set_source_text(request_text_);
    request.set_file_name(std::filesystem::path(options_.file).filename().string());
    request.mutable_overrides()->Assign(overrides_.begin(), overrides_.end());
    // Of a sweep the first job stands for all: what is wrong with others the server says.
    for (const v1::SweepAxis& axis : options_.axes) {
      v1::Override* first = request.add_overrides();
      first->set_key(axis.key());
      first->set_value(axis.values(0));
      first->set_kind(v1::Override::SET);
      first->set_origin("sweep");
    }
    SFT_ASSIGN_OR_RETURN(resolution_, connection_.Call(&v1::JobService::Stub::ResolveJob, request));
    return absl::OkStatus();
  }

  absl::Status ReadJobFile() {
    // A job file that is not there is a wrong command line, not a missing job.
    const absl::Status regular = io::CheckRegularFile(options_.file);
    if (!regular.ok()) return InvalidArgument(Message(regular));
    absl::StatusOr<std::string> text = io::ReadFile(options_.file, kMaxJobFile);
    if (!text.ok()) return InvalidArgument(Message(text.status()));
    request_text_ = *std::move(text);
    const size_t bad = FindInvalidUtf8(request_text_);
    if (bad == std::string::npos) return absl::OkStatus();
    const auto line = 1 + std::count(request_text_.begin(), request_text_.begin() + bad, '\n');
    return InvalidArgument(
        fmt::format("{}:{}: is not UTF-8, as a TOML file must be", options_.file, line));
  }

  // Hashes the files that the job names; what cannot be read is one more problem of the job.
  void CheckFiles() {
    for (const v1::NeededFile& needed : resolution_.needed_files()) {
      const absl::StatusOr<LocalFile> file =
          HashLocalFile(needed.key(), LocalPath(needed, options_.file));
      if (file.ok()) {
        files_.emplace_back(needed, *file);
        continue;
      }
      v1::Problem* problem = resolution_.add_problems();
      problem->set_key(needed.key());
      problem->set_line(needed.line());
      const std::string message(Message(file.status()));
      problem->set_message(
          message.substr(needed.key().size() + 2) +
          "; must be a file of this machine, or node:/path for one that every node sees");
    }
    std::stable_sort(resolution_.mutable_problems()->begin(), resolution_.mutable_problems()->end(),
                     [](const auto& a, const auto& b) { return a.line() < b.line(); });
  }

  void PrintProblems(const google::protobuf::RepeatedPtrField<v1::Problem>& problems,
                     const std::string& prefix) {
    for (const v1::Problem& problem : problems) {
      connection_.console().err << prefix << ProblemLine(problem, options_.file) << "\n";
    }
  }

  v1::SubmitJobRequest Request(bool validate_only) {
    v1::SubmitJobRequest request;
    request.set_request_id(options_.request_id.empty() ? RandomUuid() : options_.request_id);
    request.set_source_text(request_text_);
    request.set_file_name(std::filesystem::path(options_.file).filename().string());
    request.mutable_overrides()->Assign(overrides_.begin(), overrides_.end());
    request.set_validate_only(validate_only);
    request.set_project(options_.project);
    for (const auto& [needed, file] : files_) {
      v1::JobFile* sent = request.add_files();
      sent->set_key(needed.key());
      sent->set_sha256(file.sha256);
      sent->set_size(file.size);
      sent->set_client_path(file.path);
    }
    return request;
  }

  ExitCode DryRun() {
    const auto job = connection_.Call(&v1::JobService::Stub::SubmitJob, Request(true));
    if (!job.ok()) return Fail(connection_, job.status());
    if (json_) {
      connection_.console().out << DumpJson(ResolutionJson(resolution_), 2) << "\n";
    } else {
      PrintPlan(connection_.console().out, resolution_);
      connection_.console().err << "dry run: nothing was submitted\n";
    }
    return kSucceeded;
  }

  absl::Status Upload() {
    for (const auto& [needed, file] : files_) {
      const absl::Status status = UploadDataset(connection_, file, options_.project);
      if (!status.ok()) return Annotate(status, needed.key());
    }
    return absl::OkStatus();
  }

  ExitCode SubmitSweep() {
    v1::SubmitSweepRequest request;
    *request.mutable_job() = Request(options_.dry_run);
    request.mutable_axes()->Assign(options_.axes.begin(), options_.axes.end());
    request.set_max_parallel(options_.max_parallel);
    if (!options_.dry_run) {
      if (const absl::Status sent = Upload(); !sent.ok()) return Fail(connection_, sent);
    }
    const auto sweep = connection_.Call(&v1::SchedulingService::Stub::SubmitSweep, request);
    if (!sweep.ok()) return Fail(connection_, sweep.status());
    std::ostream& out = connection_.console().out;
    if (options_.dry_run) {
      connection_.console().err << "dry run: every combination is valid; nothing was submitted\n";
      return kSucceeded;
    }
    if (json_) {
      Json jobs = Json::array();
      for (const v1::Job& job : sweep->jobs()) jobs.push_back(ShortName(job.name()));
      out << DumpJson(Json({{"sweep", sweep->sweep()}, {"jobs", jobs}}), 2) << "\n";
      return kSucceeded;
    }
    out << sweep->sweep() << std::endl;
    connection_.console().err << fmt::format(
        "submitted {} jobs; `sftctl list --sweep {}` shows them, `sftctl cancel --sweep {}` ends "
        "them\n",
        sweep->jobs_size(), sweep->sweep(), sweep->sweep());
    return kSucceeded;
  }

  ExitCode Submit() {
    if (const absl::Status sent = Upload(); !sent.ok()) return Fail(connection_, sent);
    const v1::SubmitJobRequest request = Request(false);
    const auto job = connection_.Call(&v1::JobService::Stub::SubmitJob, request);
    if (!job.ok()) return Fail(connection_, job.status());
    const std::string id = ShortName(job->name());
    if (json_) {
      connection_.console().out << DumpJson(JobJson(*job), options_.follow ? -1 : 2) << std::endl;
    } else {
      connection_.console().out << id << std::endl;
      connection_.console().err << fmt::format(
          "submitted {}{}; follow it with `sftctl logs {} --follow` or "
          "`sftctl status {} --watch`\n",
          id, job->reason().empty() ? "" : ": " + job->reason(), id, id);
    }
    return options_.follow ? FollowToTheEnd(connection_, id, json_) : kSucceeded;
  }

  Connection& connection_;
  const SubmitOptions& options_;
  const bool json_;
  std::string request_text_;
  std::vector<v1::Override> overrides_;
  v1::ResolveJobResponse resolution_;
  std::vector<std::pair<v1::NeededFile, LocalFile>> files_;
};

}  // namespace

namespace {

void AddScheduling(Command* command, SubmitOptions& options) {
  command->AddOption("--priority", options.priority,
                     "Class: low, normal, high or urgent (scheduling.priority)");
  command->AddOption("--after", options.after,
                     "Ids of jobs that have to succeed first, with commas (scheduling.after)");
  command->AddOption("--time-limit", options.time_limit,
                     "Longest time on its GPUs, as in 8h (scheduling.time_limit)");
  command->AddFlag("--hold", options.hold, "Wait for `sftctl release JOB` (scheduling.hold)");
}

// "lora.r=8,16" -> the key and its values; with a ";" those separate them, so that a value may hold
// commas.
absl::StatusOr<v1::SweepAxis> ParseAxis(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    return InvalidArgument(
        fmt::format("--set {}: must be key=value,value,... as in --set lora.r=8,16", text));
  }
  v1::SweepAxis axis;
  axis.set_key(text.substr(0, equals));
  const char separator = text.find(';') == std::string::npos ? ',' : ';';
  for (size_t at = equals + 1; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    axis.add_values(text.substr(at, end - at));
    at = end + 1;
  }
  return axis;
}

}  // namespace

void AddSubmit(Command& app, Session& session) {
  Command* command = app.AddCommand(
      "submit", "Submit a job file",
      "sftctl submit job.toml --dataset train.jsonl --set hyperparameters.n_epochs=2 --follow");
  auto options = std::make_shared<SubmitOptions>();
  Option* file = command->AddOption("FILE", options->file, "Job file (TOML; docs/config.md)");
  command->AddOption("--config", options->config, "The same as FILE")->Excludes(file);
  command->AddOption("--type", options->type, "Kind of job: sft");
  command->AddOption("--name", options->name, "Label shown in lists (job.name)");
  command->AddOption("--dataset", options->dataset, "Training rows instead of job.data");
  command->AddOption("--val", options->val, "Validation rows instead of data.val");
  command->AddOption("--examples", options->examples, "Train on the first N rows only")
      ->WholeNumber(1);
  command->AddOption("--model", options->model, "Base model instead of job.model");
  command->AddOption("--deepspeed", options->deepspeed,
                     "DeepSpeed JSON for train.deepspeed_config; comments are allowed");
  command->AddOption("--set", options->set,
                     "key=value: change one key; may be repeated, the last one wins");
  AddScheduling(command, *options);
  command->AddFlag(
      "--dry-run", options->dry_run,
      "Check everything, print the resolved job, its allocation and memory; submit nothing");
  command->AddFlag("--follow", options->follow,
                   "Watch it to its end; Ctrl-C detaches and the job goes on");
  command->AddOption(
      "--request-id", options->request_id,
      "Submitting again with the same id returns the same job (default: a random one)");
  AddProjectOption(command, options->project);
  AddJsonFlag(command, session);
  command->Check([options] {
    if (options->file.empty()) options->file = options->config;
    return options->file.empty() ? "FILE: name a job file: sftctl submit job.toml" : "";
  });
  command->Run([&session, options](Connection& connection) {
    return Submission(connection, *options, session.json).Run();
  });
}

void AddSweep(Command& app, Session& session) {
  Command* command =
      app.AddCommand("sweep", "Submit a job file once for each combination of values",
                     "sftctl sweep job.toml --set lora.r=8,16,32 --set hyperparameters.seed=1,2 "
                     "--max-parallel 2");
  auto options = std::make_shared<SubmitOptions>();
  auto axes = std::make_shared<std::vector<std::string>>();
  command->AddOption("FILE", options->file, "Job file (TOML; docs/config.md)")->Required();
  command
      ->AddOption("--set", *axes,
                  "key=value,value,...: the values a key takes in turn; may be repeated. A \";\" "
                  "between values lets them hold commas")
      ->Required();
  command->AddOption("--max-parallel", options->max_parallel, "Run at most so many at once")
      ->WholeNumber(1);
  command->AddOption("--dataset", options->dataset, "Training rows instead of job.data");
  AddScheduling(command, *options);
  command->AddFlag("--dry-run", options->dry_run, "Check every combination; submit nothing");
  command->AddOption("--request-id", options->request_id,
                     "Submitting again with the same id returns the same sweep (default: a random "
                     "one)");
  AddJsonFlag(command, session);
  command->Run([&session, options, axes](Connection& connection) -> ExitCode {
    for (const std::string& text : *axes) {
      absl::StatusOr<v1::SweepAxis> axis = ParseAxis(text);
      if (!axis.ok()) return Fail(connection, axis.status());
      options->axes.push_back(*std::move(axis));
    }
    return Submission(connection, *options, session.json).Run();
  });
}

}  // namespace sft::client
