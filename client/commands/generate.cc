#include <absl/cleanup/cleanup.h>
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <vector>

#include "client/base/artifact_file.h"
#include "client/base/ask.h"
#include "client/base/interrupt.h"
#include "client/base/job_follow.h"
#include "client/base/one_job.h"
#include "client/base/upload.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/io/file.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

struct GenerateOptions {
  std::string job, model, checkpoint, prompt, system, gpu_type, project;
  bool raw = false;
  int max_new_tokens = 256;
  std::optional<double> temperature, top_p;
  std::optional<int> seed, num_beams;
};

// Answers one prompt by a job of kind "generate".
class OnePrompt {
 public:
  OnePrompt(Connection& connection, GenerateOptions options, bool json)
      : connection_(connection), options_(std::move(options)), json_(json) {}

  ExitCode Run() {
    if (!IsUtf8(options_.prompt) || !IsUtf8(options_.system)) {
      return Fail(connection_, InvalidArgument("the prompt is not UTF-8"));
    }
    absl::StatusOr<bool> serves = Serves();
    if (!serves.ok()) return Fail(connection_, serves.status());
    if (*serves) return Ask();
    absl::Status status = FindAnswerer();
    if (status.ok()) status = Submit();
    if (!status.ok()) return Fail(connection_, status);
    const absl::StatusOr<v1::Job> job = FollowOneLine(connection_, id_);
    if (!job.ok() && Interrupt::Raised()) {
      CancelOwn(connection_, id_, "sftctl generate was interrupted");
      return kInterrupted;
    }
    if (!job.ok()) return Fail(connection_, job.status());
    if (job->state() != v1::Job::SUCCEEDED) {
      PrintEnding(connection_, *job);
      return ExitCodeOf(*job);
    }
    const absl::StatusOr<Json> answer = FetchAnswer();
    return answer.ok() ? Show(*answer) : Fail(connection_, answer.status());
  }

 private:
  // Whether JOB is one that answers by itself.
  absl::StatusOr<bool> Serves() {
    if (options_.job.empty()) return false;
    v1::GetJobRequest request;
    request.set_name(options_.job);
    SFT_ASSIGN_OR_RETURN(const v1::Job job,
                         connection_.Call(&v1::JobService::Stub::GetJob, request));
    if (job.kind() != v1::Job::SERVE) return false;
    id_ = ShortName(job.name());
    if (!options_.checkpoint.empty()) return InvalidArgument(ServesNoCheckpoint(id_));
    if (options_.num_beams) {
      return InvalidArgument(fmt::format(
          "{} gives its answers token by token, a search with beams at its end: leave out "
          "--num-beams, or ask what it serves by --model or by the job that trained it",
          id_));
    }
    if (options_.gpu_type.empty() && options_.project.empty()) return true;
    return InvalidArgument(fmt::format(
        "{} runs already and answers by itself: leave out --gpu-type and --project", id_));
  }

  // A job that serves answers at once, and the answer is printed as it is made.
  ExitCode Ask() {
    v1::GenerateRequest request;
    request.set_name(id_);
    if (options_.raw) {
      request.set_prompt(options_.prompt);
    } else {
      if (!options_.system.empty()) AddMessage(request, "system", options_.system);
      AddMessage(request, "user", options_.prompt);
    }
    request.set_max_new_tokens(options_.max_new_tokens);
    if (options_.temperature) request.set_temperature(*options_.temperature);
    if (options_.top_p) request.set_top_p(*options_.top_p);
    if (options_.seed) request.set_seed(*options_.seed);
    Console& console = connection_.console();
    std::string answer;
    const Asking asking{
        .on_text =
            [&](const std::string& text) {
              answer += text;
              if (!json_) console.out << Lines(text) << std::flush;
            },
        .on_wait = [&](const std::string& why) { console.err << OneLine(why) << "\n"; }};
    const auto last = AskServing(connection_, request, asking);
    if (!json_ && (last.ok() || !answer.empty())) console.out << "\n" << std::flush;
    if (!last.ok() && Interrupt::Raised()) return kInterrupted;
    if (!last.ok()) return Fail(connection_, last.status());
    if (json_) {
      const Json shown = {{"answer", answer},
                          {"finish_reason", last->finish_reason()},
                          {"prompt_tokens", last->prompt_tokens()},
                          {"answer_tokens", last->answer_tokens()},
                          {"job", id_}};
      console.out << DumpJson(shown, 2) << "\n";
    }
    return kSucceeded;
  }

  static void AddMessage(v1::GenerateRequest& request, const std::string& role,
                         const std::string& content) {
    v1::ChatMessage& message = *request.add_messages();
    message.set_role(role);
    message.set_content(content);
  }

  absl::Status FindAnswerer() {
    if (options_.job.empty()) {
      answerer_.model = options_.model;
    } else {
      SFT_ASSIGN_OR_RETURN(answerer_,
                           AnswererOfJob(connection_, options_.job, options_.checkpoint));
    }
    if (options_.project.empty()) options_.project = answerer_.project;
    if (!options_.gpu_type.empty()) answerer_.gpu_type = options_.gpu_type;
    return absl::OkStatus();
  }

  std::string JobFile() const {
    std::string text = AnswererTables(answerer_, "generate", "one prompt", "prompt.jsonl");
    text += fmt::format("[generate]\nmax_new_tokens = {}\n", options_.max_new_tokens);
    if (options_.temperature) text += fmt::format("temperature = {}\n", *options_.temperature);
    if (options_.top_p) text += fmt::format("top_p = {}\n", *options_.top_p);
    if (options_.num_beams) text += fmt::format("num_beams = {}\n", *options_.num_beams);
    if (options_.seed) text += fmt::format("seed = {}\n", *options_.seed);
    return text;
  }

  absl::StatusOr<LocalFile> WritePrompt(const std::string& folder) const {
    Json row = {{"prompt", options_.prompt}};
    Json messages = Json::array();
    if (!options_.system.empty()) {
      messages.push_back({{"role", "system"}, {"content", options_.system}});
    }
    messages.push_back({{"role", "user"}, {"content", options_.prompt}});
    if (!options_.raw) row = {{"messages", messages}};
    const std::string path = folder + "/prompt.jsonl";
    SFT_RETURN_IF_ERROR(io::WriteFileAtomic(path, DumpJson(row) + "\n"));
    SFT_ASSIGN_OR_RETURN(LocalFile file, HashLocalFile("job.data", path));
    file.name = "prompt.jsonl";
    return file;
  }

  absl::Status Submit() {
    SFT_ASSIGN_OR_RETURN(const std::string folder, io::MakeTempDir("sftctl-generate-"));
    const absl::Cleanup remove = [&] { (void)io::RemoveAll(folder); };
    SFT_ASSIGN_OR_RETURN(const LocalFile file, WritePrompt(folder));
    v1::SubmitJobRequest request;
    request.set_request_id(RandomUuid());
    request.set_source_text(JobFile());
    request.set_file_name("generate.toml");
    request.set_project(options_.project);
    SFT_RETURN_IF_ERROR(AddRows(connection_, file, options_.project, request));
    SFT_ASSIGN_OR_RETURN(const v1::Job job, SubmitAnswerer(connection_, answerer_, request));
    id_ = ShortName(job.name());
    return absl::OkStatus();
  }

  absl::StatusOr<Json> FetchAnswer() {
    SFT_ASSIGN_OR_RETURN(Json answer, ReadArtifactJson(connection_, id_, "answers.jsonl"));
    if (!answer.contains("answer") || !answer["answer"].is_string()) {
      return DataLoss(fmt::format("{} delivered no answer", id_));
    }
    return answer;
  }

  ExitCode Show(Json answer) {
    Console& console = connection_.console();
    if (json_) {
      answer["job"] = id_;
      console.out << DumpJson(answer, 2) << "\n";
    } else {
      console.out << Lines(answer["answer"].get<std::string>()) << "\n";
    }
    if (!answer.contains("error")) return kSucceeded;
    console.err << "sftctl: " << Lines(answer.value("error", std::string())) << "\n";
    return kJobFailedUser;
  }

  Connection& connection_;
  GenerateOptions options_;
  Answerer answerer_;
  const bool json_;
  std::string id_;
};

// Why the flags do not fit together; empty where they do.
const char* Problem(const GenerateOptions& options) {
  if (options.job.empty() && options.model.empty()) return "needs a JOB, or --model MODEL";
  if (options.job.empty() && !options.checkpoint.empty()) return "--checkpoint is of a JOB";
  if (options.raw && !options.system.empty()) {
    return "--system is a message, and --raw asks without messages";
  }
  const double temperature = options.temperature.value_or(0);
  if (!std::isfinite(temperature) || temperature < 0) return "--temperature must be 0 or more";
  if (options.num_beams.value_or(1) > 1 && temperature > 0) {
    return "--num-beams searches, and draws nothing: leave out --temperature, or the beams";
  }
  return "";
}

}  // namespace

void AddGenerate(Command& app, Session& session) {
  Command* command =
      app.AddCommand("generate", "Answer one prompt with a base model, or with what a job trained",
                     "sftctl generate job-abc --prompt \"What is a shim?\"");
  auto options = std::make_shared<GenerateOptions>();
  Option* job = command->AddOption("JOB", options->job, "Job whose adapter or model answers");
  command->AddOption("--model", options->model, "Base model that answers, in place of JOB")
      ->Excludes(job);
  command->AddOption("--checkpoint", options->checkpoint, kCheckpointHelp);
  command->AddOption("--prompt", options->prompt, "What a user says")->Required();
  command->AddOption("--system", options->system, "A system message before it");
  command->AddFlag("--raw", options->raw,
                   "Continue the prompt as it is, without the model's chat template");
  command->AddOption("--max-new-tokens", options->max_new_tokens, "Longest answer, in tokens")
      ->WholeNumber(1)
      ->ShowDefault();
  command->AddOption("--temperature", options->temperature,
                     "Above 0: draw tokens (default: always the likeliest)");
  command->AddOption("--top-p", options->top_p,
                     "Draw from the likeliest tokens of this much probability");
  command
      ->AddOption("--num-beams", options->num_beams,
                  "Above 1: search for the likeliest answer with so many beams")
      ->WholeNumber(1);
  command->AddOption("--seed", options->seed, "Another seed draws another answer");
  command->AddOption("--gpu-type", options->gpu_type,
                     "Type of GPU, or CPU (default: that of JOB, or the only one)");
  AddProjectOption(command, options->project);
  AddJsonFlag(command, session);
  command->Check([options] { return Problem(*options); });
  command->Run([&session, options](Connection& connection) {
    return OnePrompt(connection, *options, session.json).Run();
  });
}

}  // namespace sft::client
