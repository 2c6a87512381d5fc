#include <absl/strings/ascii.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <optional>
#include <vector>

#include "client/base/artifact_file.h"
#include "client/base/interrupt.h"
#include "client/base/job_follow.h"
#include "client/base/job_request.h"
#include "client/base/one_job.h"
#include "client/base/upload.h"
#include "client/commands/commands.h"
#include "client/output/evaluation.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/progress.h"
#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/spec/job_spec.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

struct EvaluateOptions {
  std::string job, model, checkpoint, data, pattern, gpu_type, project;
  std::optional<std::string> metrics;
  std::optional<int> max_new_tokens, max_examples;
  std::vector<std::string> set;
  int samples = 3;
};

// Grades what a job trained beside its base on held-out rows, by a job of kind "evaluate"; or shows
// what such a job has found.
class Evaluation {
 public:
  Evaluation(Connection& connection, EvaluateOptions options, bool json)
      : connection_(connection), options_(std::move(options)), json_(json) {}

  ExitCode Run() {
    absl::Status status = options_.data.empty() ? FindFinished() : Begin();
    if (!status.ok()) return Fail(connection_, status);
    const absl::StatusOr<v1::Job> job = Follow();
    if (!job.ok() && Interrupt::Raised()) {
      if (!options_.data.empty()) CancelOwn(connection_, id_, "sftctl evaluate was interrupted");
      return kInterrupted;
    }
    if (!job.ok()) return Fail(connection_, job.status());
    if (job->state() != v1::Job::SUCCEEDED) {
      PrintEnding(connection_, *job);
      return ExitCodeOf(*job);
    }
    const absl::StatusOr<Json> report = ReadArtifactJson(connection_, id_, "evaluation.json");
    return report.ok() ? Show(*report) : Fail(connection_, report.status());
  }

 private:
  // A job of kind "evaluate" that was submitted before.
  absl::Status FindFinished() {
    v1::GetJobRequest request;
    request.set_name(options_.job);
    SFT_ASSIGN_OR_RETURN(const v1::Job job,
                         connection_.Call(&v1::JobService::Stub::GetJob, request));
    if (job.kind() != v1::Job::EVALUATE) {
      return InvalidArgument(fmt::format(
          "{} is no evaluation: name the held-out rows on which it is graded with --data FILE",
          ShortName(job.name())));
    }
    id_ = ShortName(job.name());
    return absl::OkStatus();
  }

  absl::Status Begin() {
    if (options_.job.empty()) {
      answerer_.model = options_.model;
    } else {
      SFT_ASSIGN_OR_RETURN(answerer_,
                           AnswererOfJob(connection_, options_.job, options_.checkpoint));
      if (answerer_.adapter.empty()) {
        connection_.console().err << fmt::format(
            "{} delivered a full model, which is graded alone; grade its base with --model\n",
            options_.job);
      }
    }
    if (options_.project.empty()) options_.project = answerer_.project;
    if (!options_.gpu_type.empty()) answerer_.gpu_type = options_.gpu_type;
    return Submit();
  }

  std::string JobFile() const {
    const auto quoted = [](const std::string& text) { return DumpJson(Json(text)); };
    std::string text = AnswererTables(answerer_, spec::kEvaluateKind, "evaluation", options_.data);
    if (options_.max_new_tokens) {
      text += fmt::format("[generate]\nmax_new_tokens = {}\n", *options_.max_new_tokens);
    }
    text += "[data]\n" + DataLines(answerer_, {"columns", "roles", "alpaca_prompt"});
    if (options_.max_examples) text += fmt::format("max_examples = {}\n", *options_.max_examples);
    if (options_.metrics || !options_.pattern.empty()) text += "[evaluate]\n";
    if (options_.metrics) {
      std::vector<std::string> names = absl::StrSplit(*options_.metrics, ',');
      for (std::string& name : names) absl::StripAsciiWhitespace(&name);
      text += fmt::format("metrics = {}\n", DumpJson(Json(names)));
    }
    if (!options_.pattern.empty()) text += fmt::format("pattern = {}\n", quoted(options_.pattern));
    return text;
  }

  absl::Status Submit() {
    v1::SubmitJobRequest request;
    request.set_request_id(RandomUuid());
    request.set_source_text(JobFile());
    request.set_file_name("evaluate.toml");
    request.set_project(options_.project);
    for (const std::string& assignment : options_.set) {
      SFT_ASSIGN_OR_RETURN(*request.add_overrides(), ParseSet(assignment));
    }
    if (!options_.data.starts_with("node:")) {
      SFT_ASSIGN_OR_RETURN(const LocalFile file, HashLocalFile("job.data", options_.data));
      SFT_RETURN_IF_ERROR(AddRows(connection_, file, options_.project, request));
    }
    SFT_ASSIGN_OR_RETURN(const v1::Job job, SubmitAnswerer(connection_, answerer_, request));
    id_ = ShortName(job.name());
    connection_.console().err << fmt::format(
        "{} evaluates; `sftctl evaluate {}` shows its result again\n", id_, id_);
    return absl::OkStatus();
  }

  absl::StatusOr<v1::Job> Follow() {
    ProgressView view(connection_.console());
    FollowHandlers handlers;
    handlers.on_job = [&](const v1::Job& job) { view.OnJob(job); };
    handlers.on_metric = [](const v1::Metric&) {};
    return FollowJob(connection_, id_, {}, handlers);
  }

  ExitCode Show(Json report) {
    Console& console = connection_.console();
    if (json_) {
      report["job"] = id_;
      console.out << DumpJson(report, 2) << "\n";
    } else {
      console.out << EvaluationText(report) << SamplesText(report, options_.samples);
    }
    return kSucceeded;
  }

  Connection& connection_;
  EvaluateOptions options_;
  Answerer answerer_;
  const bool json_;
  std::string id_;
};

}  // namespace

void AddEvaluate(Command& app, Session& session) {
  Command* command =
      app.AddCommand("evaluate", "Grade what a job trained beside its base, on held-out rows",
                     "sftctl evaluate job-abc --data heldout.jsonl --metrics exact_match,rouge_l");
  auto options = std::make_shared<EvaluateOptions>();
  Option* job = command->AddOption(
      "JOB", options->job, "Job whose adapter is graded; or an evaluation, whose result is shown");
  command->AddOption("--model", options->model, "Base model that is graded alone, in place of JOB")
      ->Excludes(job);
  command->AddOption("--data", options->data,
                     "Held-out rows, as for training; node:/path: a file on the nodes");
  command->AddOption("--metrics", options->metrics,
                     "What answers are graded by, separated by commas (default: "
                     "exact_match,f1,rouge_l)");
  command->AddOption("--checkpoint", options->checkpoint, kCheckpointHelp);
  command->AddOption("--pattern", options->pattern, "Regular expression of the metric regex");
  command->AddOption("--max-examples", options->max_examples, "Only the first N rows")
      ->WholeNumber(1);
  command
      ->AddOption("--max-new-tokens", options->max_new_tokens,
                  "Longest answer, in tokens (default: 256)")
      ->WholeNumber(1);
  command->AddOption("--samples", options->samples, "Rows shown below the table, 50 at most")
      ->WholeNumber(0)
      ->ShowDefault();
  command->AddOption("--gpu-type", options->gpu_type,
                     "Type of GPU, or CPU (default: that of JOB, or the only one)");
  command->AddOption("--set", options->set, "Another key of the job, as for submit: key=value");
  AddProjectOption(command, options->project);
  AddJsonFlag(command, session);
  command->Check([options] {
    if (options->job.empty() && options->model.empty()) return "needs a JOB, or --model MODEL";
    if (options->job.empty() && options->data.empty()) return "--model needs --data FILE";
    return options->checkpoint.empty() || (!options->job.empty() && !options->data.empty())
               ? ""
               : "--checkpoint is of a JOB, on the rows of --data FILE";
  });
  command->Run([&session, options](Connection& connection) {
    return Evaluation(connection, *options, session.json).Run();
  });
}

}  // namespace sft::client
