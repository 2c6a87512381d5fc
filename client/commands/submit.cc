#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "client/base/interrupt.h"
#include "client/base/job_request.h"
#include "client/base/packed_folder.h"
#include "client/base/rows_text.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/job_hooks.h"
#include "client/output/json.h"
#include "client/output/resolution.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/base/plain_text.h"
#include "common/base/utf8.h"
#include "common/data/dataset_check.h"
#include "common/data/prompt_row.h"
#include "common/io/file.h"
#include "common/spec/job_spec.h"
#include "common/spec/sweep.h"
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

class Submission {
 public:
  Submission(Connection& connection, const SubmitOptions& options, bool json)
      : connection_(connection),
        options_(options),
        json_(json),
        request_id_(options.request_id.empty() ? RandomUuid() : options.request_id) {}

  ExitCode Run() {
    if (const absl::Status status = ReadInput(); !status.ok()) return Fail(connection_, status);
    if (const absl::Status status = Resolve(); !status.ok()) return Refuse(status, {});
    if (PacksDocuments()) {
      overrides_.push_back(
          MakeOverride(v1::Override::SET, "data.packing", "true", "a folder of raw documents"));
      if (const absl::Status status = Resolve(); !status.ok()) return Refuse(status, {});
    }
    CheckFiles();
    PrintProblems(resolution_.warnings(), "warning: ");
    if (!resolution_.problems().empty()) return Refuse();
    if ((options_.dry_run || uploads_) && !resolution_.checked_for_submit()) {
      // Before gigabytes are sent for a job that is refused.
      if (const std::optional<ExitCode> refused = Send(true)) return *refused;
    }
    if (options_.dry_run) return ShowDryRun();
    if (const absl::Status sent = Upload(); !sent.ok()) return Fail(connection_, sent);
    if (const std::optional<ExitCode> refused = Send(false)) return *refused;
    return options_.axes.empty() ? ShowJob() : ShowSweep();
  }

 private:
  absl::Status ReadInput() {
    SFT_RETURN_IF_ERROR(ReadJobFile());
    SFT_ASSIGN_OR_RETURN(overrides_, CollectOverrides(options_));
    return absl::OkStatus();
  }

  absl::Status Resolve() {
    v1::ResolveJobRequest request;
    request.set_source_text(request_text_);
    request.set_file_name(std::filesystem::path(options_.file).filename().string());
    request.mutable_overrides()->Assign(overrides_.begin(), overrides_.end());
    // A sweep resolves its first job here; the server checks the others, and whether so many may
    // wait, when the whole sweep is submitted.
    if (options_.axes.empty()) {
      request.set_for_submit(true);
      request.set_project(options_.project);
      request.set_request_id(request_id_);
      request.set_explain_wait(options_.dry_run);
    }
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
        fmt::format("{}:{}: is not UTF-8, as a job file must be", options_.file, line));
  }

  // Whether data.packing, of which the job says nothing, is on since its rows are raw documents. Of
  // files the server sees it by their names.
  bool PacksDocuments() const {
    for (const v1::ResolvedValue& value : resolution_.resolved()) {
      if (value.key() == "data.packing" && value.origin() != "default") return false;
    }
    const bool trains = ValueOf(resolution_, "job.kind") == spec::kTrainingKind &&
                        ValueOf(resolution_, "training.loss") == "sft";
    if (!trains || !ValueOf(resolution_, "data.mixture").empty()) return false;
    // Rows that lie on the nodes are not among these files.
    return std::ranges::any_of(resolution_.needed_files(), [this](const v1::NeededFile& needed) {
      return needed.key() == "job.data" && IsFolderOfDocuments(LocalPath(needed, options_.file));
    });
  }

  // Hashes the files that the job names, and reads the rows of those that the server does not know:
  // what is wrong with them is one more problem of the job.
  void CheckFiles() {
    for (const v1::NeededFile& needed : resolution_.needed_files()) {
      absl::StatusOr<LocalFile> file = FindFile(needed);
      if (absl::IsFailedPrecondition(file.status())) {
        AddFileProblem(needed, std::string(Message(file.status())));
        continue;
      }
      if (!file.ok()) {
        AddFileProblem(needed,
                       fmt::format("{}; must be a file of this machine, or node:/path for one that "
                                   "every node sees",
                                   Message(file.status()).substr(needed.key().size() + 2)));
        continue;
      }
      files_.emplace_back(needed, *file);
      // What the server has it has checked, and tells when the job is sent.
      const bool asks = !options_.dry_run || !resolution_.checked_for_submit();
      if (asks && IsUploaded(connection_, *file, options_.project)) continue;
      uploads_ = true;
      if (const std::string problem = CheckRows(needed, *file); !problem.empty()) {
        AddFileProblem(needed, fmt::format("{}: {}", file->shown(), problem));
      }
    }
    SortProblems();
  }

  // The file itself, or the rows of a folder packed into one. FAILED_PRECONDITION: the folder has
  // no rows to be sent.
  absl::StatusOr<LocalFile> FindFile(const v1::NeededFile& needed) {
    const std::string path = LocalPath(needed, options_.file);
    if (!NamesFolder(path)) return HashLocalFile(needed.key(), path);
    absl::StatusOr<PackedFolder> packed = PackedFolder::Make(path, NamesOfColumns());
    if (!packed.ok()) return FailedPrecondition(Message(packed.status()));
    connection_.console().err << fmt::format("{}: {} file{} ({})\n", OneLine(path), packed->files(),
                                             packed->files() == 1 ? "" : "s",
                                             OneLine(packed->chosen()));
    folders_.push_back(*std::move(packed));
    SFT_ASSIGN_OR_RETURN(LocalFile file, HashLocalFile(needed.key(), folders_.back().path()));
    file.name = path + "/rows.jsonl";
    return file;
  }

  data::RowNames NamesOfColumns() const {
    const std::vector<std::string> columns =
        absl::StrSplit(ValueOf(resolution_, "data.columns"), ',', absl::SkipEmpty());
    return data::NamesOf(columns, {});
  }

  std::string CheckRows(const v1::NeededFile& needed, const LocalFile& file) {
    if (ValueOf(resolution_, "job.kind") == spec::kGenerateKind) return CheckPrompts(file);
    const absl::StatusOr<data::DatasetCheck> found =
        data::CheckDataset(file.path, file.shown(), NamesOfColumns(), Learns());
    if (!found.ok()) return std::string(Message(found.status()));
    // What is found is also said: it costs little, and tells of a wrong file.
    if (!json_) connection_.console().err << RowsText(file, *found, resolution_, options_.file);
    const int64_t taken = needed.key() == "job.data" ? RowsTaken() : 0;
    return data::RowsProblem(*found, ValueOf(resolution_, "data.on_bad_rows") == "skip", taken);
  }

  data::Learns Learns() const {
    return data::LearnsOf(ValueOf(resolution_, "training.loss"), ValueOf(resolution_, "job.kind"));
  }

  int64_t RowsTaken() const {
    int64_t taken = 0;
    const std::string text = ValueOf(resolution_, "data.max_examples");
    std::from_chars(text.data(), text.data() + text.size(), taken);
    return taken;
  }

  std::string CheckPrompts(const LocalFile& file) const {
    const absl::StatusOr<int64_t> rows = data::CountPromptRows(file.path, file.path, RowsTaken());
    return std::string(Message(rows.status()));
  }

  void AddFileProblem(const v1::NeededFile& needed, const std::string& message) {
    v1::Problem* problem = resolution_.add_problems();
    problem->set_key(needed.key());
    problem->set_line(needed.line());
    problem->set_message(message);
  }

  void SortProblems() {
    std::stable_sort(resolution_.mutable_problems()->begin(), resolution_.mutable_problems()->end(),
                     [](const auto& a, const auto& b) { return a.line() < b.line(); });
  }

  void PrintProblems(const google::protobuf::RepeatedPtrField<v1::Problem>& problems,
                     const std::string& prefix) {
    constexpr int kMostShown = 20;
    for (int i = 0; i < std::min(problems.size(), kMostShown); ++i) {
      connection_.console().err << prefix << ProblemLine(problems[i], options_.file) << "\n";
    }
    if (problems.size() > kMostShown) {
      connection_.console().err << fmt::format("{}and {} more\n", prefix,
                                               problems.size() - kMostShown);
    }
  }

  // Of a job with problems: all of them, in the one form that they have.
  ExitCode Refuse() {
    if (json_) connection_.console().out << DumpJson(ResolutionJson(resolution_), 2) << "\n";
    PrintProblems(resolution_.problems(), "");
    connection_.console().err << fmt::format(
        "sftctl: {} problem{} in {}; `sftctl explain KEY` describes a key\n",
        resolution_.problems_size(), resolution_.problems_size() == 1 ? "" : "s", options_.file);
    return kUsage;
  }

  // What the server says only to a job that would be submitted: limits, other jobs, its values of a
  // sweep.
  ExitCode Refuse(const absl::Status& status, const std::vector<rpc::FieldViolation>& violations) {
    for (const rpc::FieldViolation& violation : violations) {
      *resolution_.add_problems() = ProblemOf(violation);
    }
    SortProblems();
    if (!violations.empty()) return Refuse();
    const ExitCode code = ExitCodeOf(status);
    if (json_ && (code == kUsage || code == kRefused)) {
      resolution_.add_problems()->set_message(std::string(Message(status)));
      connection_.console().out << DumpJson(ResolutionJson(resolution_), 2) << "\n";
    }
    return Fail(connection_, status);
  }

  // Submits, or only asks whether that would be refused; nothing: it is not.
  std::optional<ExitCode> Send(bool validate_only) {
    std::vector<rpc::FieldViolation> violations;
    const v1::SubmitJobRequest request = Request(validate_only);
    absl::Status status;
    if (options_.axes.empty()) {
      auto job = connection_.Call(&v1::JobService::Stub::SubmitJob, request, &violations);
      status = job.status();
      if (job.ok()) job_ = *std::move(job);
    } else {
      v1::SubmitSweepRequest sweep;
      *sweep.mutable_job() = request;
      sweep.mutable_axes()->Assign(options_.axes.begin(), options_.axes.end());
      sweep.set_max_parallel(options_.max_parallel);
      auto sent = connection_.Call(&v1::SchedulingService::Stub::SubmitSweep, sweep, &violations);
      status = sent.status();
      if (sent.ok()) sweep_ = *std::move(sent);
    }
    if (status.ok()) return std::nullopt;
    return Refuse(status, violations);
  }

  v1::SubmitJobRequest Request(bool validate_only) {
    v1::SubmitJobRequest request;
    request.set_request_id(request_id_);
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
      sent->set_client_path(file.shown());
    }
    return request;
  }

  absl::Status Upload() {
    for (const auto& [needed, file] : files_) {
      const absl::Status status = UploadDataset(connection_, file, options_.project);
      if (!status.ok()) return Annotate(status, needed.key());
    }
    return absl::OkStatus();
  }

  ExitCode ShowDryRun() {
    std::ostream& out = connection_.console().out;
    if (!options_.axes.empty()) return ShowSweepPlan();
    NameFile();
    if (json_) {
      out << DumpJson(ResolutionJson(resolution_), 2) << "\n";
    } else {
      PrintPlan(out, resolution_);
      connection_.console().err << "dry run: nothing was submitted\n";
    }
    return kSucceeded;
  }

  // The server knows the job file without its folder.
  void NameFile() {
    if (!resolution_.plan().has_wait()) return;
    const std::filesystem::path path = options_.file;
    const std::string begin = fmt::format("sftctl submit {} ", ShellWord(path.filename().string()));
    for (v1::WhatIf& what_if : *resolution_.mutable_plan()->mutable_wait()->mutable_what_ifs()) {
      if (!what_if.command().starts_with(begin)) continue;
      what_if.set_command(fmt::format("sftctl submit {} {}", ShellWord(options_.file),
                                      what_if.command().substr(begin.size())));
    }
  }

  ExitCode ShowSweepPlan() {
    std::vector<std::string> keys = {"JOB"};
    std::vector<int> counts;
    int64_t all = 1;
    for (const v1::SweepAxis& axis : options_.axes) {
      keys.push_back(axis.key());
      counts.push_back(axis.values_size());
      all *= axis.values_size();
    }
    Table table(keys);
    Json jobs = Json::array();
    for (int64_t job = 0; job < all; ++job) {
      std::vector<std::string> row = {fmt::format("{}", job + 1)};
      Json changes = Json::object();
      const std::vector<int> values = spec::SweepValues(counts, job);
      for (size_t i = 0; i < values.size(); ++i) {
        const std::string& value = options_.axes[i].values(values[i]);
        changes[options_.axes[i].key()] = value;
        row.push_back(value);
      }
      table.Add(row);
      jobs.push_back(changes);
    }
    if (json_) {
      Json json = ResolutionJson(resolution_);
      json["jobs"] = jobs;
      connection_.console().out << DumpJson(json, 2) << "\n";
    } else {
      connection_.console().out << table.Render();
    }
    connection_.console().err << fmt::format(
        "dry run: {} job{}, every combination is valid; nothing was submitted\n", jobs.size(),
        jobs.size() == 1 ? "" : "s");
    return kSucceeded;
  }

  ExitCode ShowSweep() {
    std::ostream& out = connection_.console().out;
    if (json_) {
      Json jobs = Json::array();
      for (const v1::Job& job : sweep_.jobs()) jobs.push_back(ShortName(job.name()));
      Json shown = {{"sweep", sweep_.sweep()}, {"jobs", jobs}};
      for (const v1::Job& job : sweep_.jobs()) {
        for (const Json& hook : JobHooksJson(job)) {
          if (hook.contains("secret")) shown["hooks"].push_back(hook);
        }
      }
      out << DumpJson(shown, 2) << "\n";
      return kSucceeded;
    }
    out << sweep_.sweep() << std::endl;
    connection_.console().err << fmt::format(
        "submitted {} jobs; `sftctl list --sweep {}` shows them, `sftctl cancel --sweep {}` ends "
        "them\n",
        sweep_.jobs_size(), sweep_.sweep(), sweep_.sweep());
    for (const v1::Job& job : sweep_.jobs()) {
      const bool new_hook = std::ranges::any_of(
          job.hooks(), [](const v1::JobHook& hook) { return !hook.secret().empty(); });
      if (new_hook) PrintSecrets(connection_.console().err, job);
    }
    return kSucceeded;
  }

  ExitCode ShowJob() {
    const std::string id = ShortName(job_.name());
    if (json_) {
      connection_.console().out << DumpJson(JobJson(job_), options_.follow ? -1 : 2) << std::endl;
    } else {
      connection_.console().out << id << std::endl;
      connection_.console().err << fmt::format(
          "submitted {}{}; follow it with `sftctl logs {} --follow` or "
          "`sftctl status {} --watch`\n",
          id, job_.reason().empty() ? "" : ": " + job_.reason(), id, id);
      PrintSecrets(connection_.console().err, job_);
    }
    return options_.follow ? FollowToTheEnd(connection_, id, json_) : kSucceeded;
  }

  Connection& connection_;
  const SubmitOptions& options_;
  const bool json_;
  const std::string request_id_;
  std::string request_text_;
  std::vector<v1::Override> overrides_;
  v1::ResolveJobResponse resolution_;
  std::vector<std::pair<v1::NeededFile, LocalFile>> files_;
  std::vector<PackedFolder> folders_;  // what of files_ is temporary
  bool uploads_ = false;               // the server does not have all of files_
  v1::Job job_;
  v1::SubmitSweepResponse sweep_;
};

}  // namespace

namespace {

void AddScheduling(Command* command, SubmitOptions& options) {
  command->AddOption("--priority", options.priority,
                     "Class: low, normal, high or urgent (scheduling.priority)");
  command->AddOption("--after", options.after,
                     "Ids of jobs that must succeed first, separated by commas (scheduling.after)");
  command->AddOption(
      "--time-limit", options.time_limit,
      "Most time that the job may hold its GPUs, for example 8h (scheduling.time_limit)");
  command->AddOption("--group", options.group,
                     "Label that runs which belong together share (job.group)");
  command->AddFlag("--hold", options.hold,
                   "Do not start before `sftctl release JOB` (scheduling.hold)");
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
  Option* file =
      command->AddOption("FILE", options->file, "Job file (TOML, YAML or JSON; docs/config.md)");
  command->AddOption("--config", options->config, "Job file, in place of FILE")->Excludes(file);
  command->AddOption("--type", options->type,
                     "Kind of job: sft, generate, serve, evaluate or export");
  command->AddOption("--name", options->name, "Label shown in lists (job.name)");
  command->AddOption("--dataset", options->dataset,
                     "File with training rows or prompts, in place of job.data");
  command->AddOption("--val", options->val, "File with validation rows, in place of data.val");
  command->AddOption("--examples", options->examples, "Take the first N rows only")->WholeNumber(1);
  command->AddOption("--model", options->model, "Base model, in place of job.model");
  command->AddOption(
      "--adapter", options->adapter,
      "Job whose adapter answers or is trained on, or its folder on the nodes (job.adapter)");
  command->AddOption("--deepspeed", options->deepspeed,
                     "DeepSpeed JSON for train.deepspeed_config; comments are allowed");
  command->AddOption("--set", options->set,
                     "key=value: change one key; may be repeated, the last one wins");
  AddScheduling(command, *options);
  command->AddFlag(
      "--dry-run", options->dry_run,
      "Check everything, print the resolved job, its allocation and memory; submit nothing");
  command->AddFlag("--follow", options->follow,
                   "Follow the job until it ends; Ctrl-C detaches and the job keeps running");
  command->AddOption(
      "--request-id", options->request_id,
      "Submitting again with the same id returns the same job (default: a random id)");
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
  command->AddOption("FILE", options->file, "Job file (TOML, YAML or JSON; docs/config.md)")
      ->Required();
  command
      ->AddOption("--set", *axes,
                  "key=value,value,...: the values to try for a key; may be repeated. Values that "
                  "contain commas are separated by \";\"")
      ->Required();
  command
      ->AddOption("--max-parallel", options->max_parallel,
                  "Most jobs of the sweep that run at once")
      ->WholeNumber(1);
  command->AddOption("--dataset", options->dataset,
                     "File with training rows, in place of job.data");
  AddScheduling(command, *options);
  command->AddFlag("--dry-run", options->dry_run, "Check every combination; submit nothing");
  command->AddOption(
      "--request-id", options->request_id,
      "Submitting again with the same id returns the same sweep (default: a random id)");
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
