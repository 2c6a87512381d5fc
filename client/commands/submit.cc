#include <fmt/format.h>

#include <filesystem>

#include "client/commands/commands.h"
#include "client/interrupt.h"
#include "client/job_request.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "common/base/ids.h"
#include "common/io/file.h"

namespace sft::client {
namespace {

constexpr int64_t kMaxJobFile = 1 << 20;

struct SubmitOptions : SubmitFlags {
  std::string config;
  std::string request_id;
  bool dry_run = false;
  bool follow = false;
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
  const Json resolved = Json::parse(response.resolved_json(), nullptr, /*allow_exceptions=*/false);
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
      if (json_) connection_.console().out << ResolutionJson(resolution_).dump(2) << "\n";
      PrintProblems(resolution_.problems(), "");
      connection_.console().err << fmt::format(
          "sftctl: {} problem{} in {}; `sftctl explain KEY` describes a key\n",
          resolution_.problems_size(), resolution_.problems_size() == 1 ? "" : "s", options_.file);
      return kUsage;
    }
    return options_.dry_run ? DryRun() : Submit();
  }

 private:
  absl::Status Resolve() {
    // A job file that is not there is a wrong command line, not a missing job.
    absl::StatusOr<std::string> text = io::ReadFile(options_.file, kMaxJobFile);
    if (!text.ok()) return InvalidArgument(Message(text.status()));
    request_text_ = *std::move(text);
    SFT_ASSIGN_OR_RETURN(overrides_, CollectOverrides(options_));
    v1::ResolveJobRequest request;
    request.set_source_text(request_text_);
    request.set_file_name(std::filesystem::path(options_.file).filename().string());
    request.mutable_overrides()->Assign(overrides_.begin(), overrides_.end());
    SFT_ASSIGN_OR_RETURN(resolution_, connection_.Call(connection_.jobs(),
                                                       &v1::JobService::Stub::ResolveJob, request));
    return absl::OkStatus();
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
      const std::string message(Message(file.status()));
      problem->set_message(
          message.substr(needed.key().size() + 2) +
          "; must be a file of this machine, or node:/path for one that every node sees");
    }
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
    const auto job =
        connection_.Call(connection_.jobs(), &v1::JobService::Stub::SubmitJob, Request(true));
    if (!job.ok()) return Fail(connection_, job.status());
    if (json_) {
      connection_.console().out << ResolutionJson(resolution_).dump(2) << "\n";
    } else {
      PrintPlan(connection_.console().out, resolution_);
      connection_.console().err << "dry run: nothing was submitted\n";
    }
    return kSucceeded;
  }

  ExitCode Submit() {
    for (const auto& [needed, file] : files_) {
      const absl::Status status = UploadDataset(connection_, file);
      if (!status.ok()) return Fail(connection_, Annotate(status, needed.key()));
    }
    const v1::SubmitJobRequest request = Request(false);
    const auto job =
        connection_.Call(connection_.jobs(), &v1::JobService::Stub::SubmitJob, request);
    if (!job.ok()) return Fail(connection_, job.status());
    const std::string id = ShortName(job->name());
    if (json_) {
      connection_.console().out << JobJson(*job).dump(options_.follow ? -1 : 2) << std::endl;
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

void AddSubmit(CLI::App& app, Session& session) {
  CLI::App* command = AddCommand(
      app, "submit", "Submit a job file",
      "sftctl submit job.toml --dataset train.jsonl --set hyperparameters.n_epochs=2 --follow");
  auto options = std::make_shared<SubmitOptions>();
  CLI::Option* file = command->add_option("FILE", options->file, "Job file (TOML; docs/config.md)");
  command->add_option("--config", options->config, "The same as FILE")->excludes(file);
  command->add_option("--type", options->type, "Kind of job: sft");
  command->add_option("--name", options->name, "Label shown in lists (job.name)");
  command->add_option("--dataset", options->dataset, "Training rows instead of job.data");
  command->add_option("--val", options->val, "Validation rows instead of data.val");
  command->add_option("--examples", options->examples, "Train on the first N rows only")
      ->check(CLI::PositiveNumber);
  command->add_option("--model", options->model, "Base model instead of job.model");
  command->add_option("--deepspeed", options->deepspeed,
                      "DeepSpeed JSON for train.deepspeed_config; comments are allowed");
  command
      ->add_option("--set", options->set,
                   "key=value: change one key; may be repeated, the last one wins")
      ->allow_extra_args(false);
  command->add_flag(
      "--dry-run", options->dry_run,
      "Check everything, print the resolved job, its allocation and memory; submit nothing");
  command->add_flag("--follow", options->follow,
                    "Watch it to its end; Ctrl-C detaches and the job goes on");
  command->add_option(
      "--request-id", options->request_id,
      "Submitting again with the same id returns the same job (default: a random one)");
  AddJsonFlag(command, session);
  command->callback([&session, options] {
    if (options->file.empty()) options->file = options->config;
    if (options->file.empty()) {
      throw CLI::ValidationError("FILE", "name a job file: sftctl submit job.toml");
    }
    session.command = [&session, options](Connection& connection) {
      return Submission(connection, *options, session.json).Run();
    };
  });
}

}  // namespace sft::client
