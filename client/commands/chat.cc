#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "client/base/ask.h"
#include "client/base/interrupt.h"
#include "client/base/job_follow.h"
#include "client/base/one_job.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/base/utf8.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

struct ChatOptions {
  std::string job, model, gpu_type, project, system, time_limit = "1h";
  std::vector<std::string> checkpoints;
  bool base = false, delivered = false;
  std::optional<int> max_new_tokens, seed;
  std::optional<double> temperature, top_p;
};

// Lines of standard input; a signal ends the wait for one.
class InputLines {
 public:
  // Nothing at the end of the input, and after a signal.
  std::optional<std::string> Next() {
    for (;;) {
      const size_t end = read_.find('\n');
      if (end != std::string::npos) return Cut(end);
      if (Interrupt::Raised()) return std::nullopt;
      pollfd entry{STDIN_FILENO, POLLIN, 0};
      if (poll(&entry, 1, 100) <= 0) continue;
      char buffer[4096];
      const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof(buffer));
      if (got <= 0) return read_.empty() ? std::nullopt : std::optional(Cut(read_.size()));
      read_.append(buffer, static_cast<size_t>(got));
    }
  }

 private:
  std::string Cut(size_t end) {
    std::string line = read_.substr(0, end);
    read_.erase(0, end + 1);
    return line;
  }
  std::string read_;
};

// A conversation with jobs that serve: one that is there, or some of its own.
class Chat {
 public:
  Chat(Connection& connection, ChatOptions options)
      : connection_(connection), options_(std::move(options)) {}

  ExitCode Run() {
    absl::Status status = FindJobs();
    for (size_t i = 0; i < serving_.size() && status.ok(); ++i) status = AwaitStart(serving_[i]);
    if (status.ok()) status = Talk();
    const bool interrupted = Interrupt::Raised();
    for (const Serving& each : serving_) {
      if (each.own) CancelOwn(connection_, each.id, "the chat is over");
    }
    if (interrupted) return kInterrupted;
    return status.ok() ? kSucceeded : Fail(connection_, status);
  }

 private:
  using Messages = std::vector<v1::ChatMessage>;

  // A job that answers.
  struct Serving {
    std::string id;
    bool own = false;  // made by this chat, and not over yet
  };
  // One of those who answer each question, with the conversation that it had.
  struct Voice {
    std::string label;
    size_t serving = 0;
    bool base = false;
    Messages said = {};
  };

  absl::Status FindJobs() {
    SFT_RETURN_IF_ERROR(FindTrained());
    if (options_.base) voices_.push_back({.label = "base", .serving = 0, .base = true});
    return absl::OkStatus();
  }

  absl::Status FindTrained() {
    if (options_.job.empty()) return Start({.model = options_.model}, "trained");
    v1::GetJobRequest request;
    request.set_name(options_.job);
    SFT_ASSIGN_OR_RETURN(const v1::Job job,
                         connection_.Call(&v1::JobService::Stub::GetJob, request));
    if (job.kind() == v1::Job::SERVE) {
      const std::string id = ShortName(job.name());
      if (!options_.checkpoints.empty()) return InvalidArgument(ServesNoCheckpoint(id));
      serving_.push_back({id});
      voices_.push_back({.label = "trained"});
      return absl::OkStatus();
    }
    for (const std::string& which : options_.checkpoints) {
      SFT_ASSIGN_OR_RETURN(Answerer answerer, AnswererOfJob(connection_, options_.job, which));
      SFT_RETURN_IF_ERROR(Start(std::move(answerer), which));
    }
    if (!options_.checkpoints.empty() && !options_.delivered) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(Answerer answerer, AnswererOfJob(connection_, options_.job));
    return Start(std::move(answerer), "trained");
  }

  // A job of this chat's own.
  absl::Status Start(Answerer answerer, const std::string& label) {
    if (options_.project.empty()) options_.project = answerer.project;
    if (!options_.gpu_type.empty()) answerer.gpu_type = options_.gpu_type;
    v1::SubmitJobRequest request;
    request.set_request_id(RandomUuid());
    request.set_file_name("chat.toml");
    request.set_project(options_.project);
    request.set_source_text(
        AnswererTables(answerer, "serve", "chat") +
        fmt::format("[scheduling]\ntime_limit = \"{}\"\n", options_.time_limit));
    SFT_ASSIGN_OR_RETURN(const v1::Job job, SubmitAnswerer(connection_, answerer, request));
    voices_.push_back({.label = LabelOf(job, label), .serving = serving_.size()});
    serving_.push_back({ShortName(job.name()), /*own=*/true});
    return absl::OkStatus();
  }

  // "step 40" where a checkpoint answers, whatever it was called.
  static std::string LabelOf(const v1::Job& job, const std::string& label) {
    const Json spec = ParseOrderedJson(job.resolved_json());
    if (!spec.is_object() || !spec.contains("job")) return label;
    const std::string adapter = spec["job"].value("adapter", std::string());
    const size_t at = adapter.rfind('@');
    return at == std::string::npos || adapter.starts_with('/') ? label
                                                               : "step " + adapter.substr(at + 1);
  }

  absl::Status AwaitStart(Serving& serving) {
    bool running = false;
    FollowOptions follow;
    follow.enough = [&] { return running; };
    FollowHandlers handlers;
    handlers.on_job = [&](const v1::Job& job) {
      running = job.state() == v1::Job::RUNNING;
      std::string line = fmt::format("{} {}", serving.id, StateName(job.state()));
      if (!job.reason().empty()) line += ": " + job.reason();
      Say(line);
    };
    handlers.on_metric = [](const v1::Metric&) {};
    SFT_ASSIGN_OR_RETURN(const v1::Job job, FollowJob(connection_, serving.id, follow, handlers));
    if (running) {
      const std::string endpoint = EndpointOf(connection_, serving.id);
      if (!endpoint.empty()) Say("programs ask it at " + endpoint);
      return absl::OkStatus();
    }
    serving.own = false;  // it has ended by itself
    PrintEnding(connection_, job);
    return FailedPrecondition(fmt::format("{} is {}", serving.id, StateName(job.state())));
  }

  absl::Status Talk() {
    InputLines input;
    Say("ask; an empty line or Ctrl-D ends it, /new forgets what was said");
    for (;;) {
      if (isatty(STDIN_FILENO) != 0) connection_.console().err << "> " << std::flush;
      const std::optional<std::string> line = input.Next();
      if (!line || line->empty()) return Ended();
      if (*line == "/new") {
        for (Voice& voice : voices_) voice.said.clear();
        continue;
      }
      absl::Status status;
      for (size_t i = 0; i < voices_.size() && status.ok(); ++i) status = Ask(*line, voices_[i]);
      if (status.ok()) continue;
      if (Interrupt::Raised()) return status;
      for (Serving& each : serving_) SFT_RETURN_IF_ERROR(GoesOn(each));
      ++unanswered_;
      connection_.console().err << "sftctl: " << Lines(std::string(sft::Message(status))) << "\n"
                                << std::flush;
    }
  }

  // A script is told by the exit code, too.
  absl::Status Ended() const {
    if (unanswered_ == 0 || isatty(STDIN_FILENO) != 0) return absl::OkStatus();
    return FailedPrecondition(fmt::format("questions that were not answered: {}", unanswered_));
  }

  // After a question that failed: an error where the job has ended, so that there is nobody to
  // ask. A server that is away may come back.
  absl::Status GoesOn(Serving& serving) {
    v1::GetJobRequest request;
    request.set_name(serving.id);
    const absl::StatusOr<v1::Job> job = connection_.Call(&v1::JobService::Stub::GetJob, request);
    if (absl::IsNotFound(job.status())) return job.status();
    if (!job.ok() || !IsEnded(job->state())) return absl::OkStatus();
    serving.own = false;
    PrintEnding(connection_, *job);
    return FailedPrecondition(fmt::format("{} is {}", serving.id, StateName(job->state())));
  }

  v1::GenerateRequest RequestFor(const Voice& voice) const {
    v1::GenerateRequest request;
    request.set_name(serving_[voice.serving].id);
    request.set_base(voice.base);
    request.mutable_messages()->Assign(voice.said.begin(), voice.said.end());
    if (options_.max_new_tokens) request.set_max_new_tokens(*options_.max_new_tokens);
    if (options_.temperature) request.set_temperature(*options_.temperature);
    if (options_.top_p) request.set_top_p(*options_.top_p);
    if (options_.seed) request.set_seed(*options_.seed);
    return request;
  }

  static v1::ChatMessage Message(const std::string& role, const std::string& content) {
    v1::ChatMessage message;
    message.set_role(role);
    message.set_content(content);
    return message;
  }

  absl::Status Ask(const std::string& line, Voice& voice) {
    Messages& said = voice.said;
    if (!IsUtf8(line)) return InvalidArgument("the question is not UTF-8");
    if (said.empty() && !options_.system.empty())
      said.push_back(Message("system", options_.system));
    said.push_back(Message("user", line));
    const std::string label = voices_.size() > 1 ? "[" + OneLine(voice.label) + "] " : "";
    const absl::StatusOr<std::string> answer = Stream(RequestFor(voice), label);
    connection_.console().out << "\n" << std::flush;
    if (!answer.ok()) {
      said.pop_back();  // what was not answered was not said
      return answer.status();
    }
    said.push_back(Message("assistant", *answer));
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Stream(const v1::GenerateRequest& request, std::string label) {
    std::string answer;
    const auto print = [&](const std::string& text) {
      answer += text;
      connection_.console().out << std::exchange(label, "") << Lines(text) << std::flush;
    };
    const Asking asking{.on_text = print, .on_wait = [&, label](const std::string& why) {
                          Say(label + "waits: " + why);
                        }};
    const absl::Status asked = AskServing(connection_, request, asking).status();
    if (!label.empty()) print("");
    SFT_RETURN_IF_ERROR(asked);
    return answer;
  }

  // Each thing once.
  void Say(const std::string& line) {
    if (line != last_said_) connection_.console().err << OneLine(line) << "\n" << std::flush;
    last_said_ = line;
  }

  Connection& connection_;
  ChatOptions options_;
  std::string last_said_;
  std::vector<Serving> serving_;
  std::vector<Voice> voices_;  // in the order in which they answer
  int unanswered_ = 0;
};

}  // namespace

void AddChat(Command& app, Session&) {
  Command* command =
      app.AddCommand("chat", "Talk with a model: what a job trained, a base, or a job that serves",
                     "sftctl chat job-abc --base");
  auto options = std::make_shared<ChatOptions>();
  Option* job = command->AddOption(
      "JOB", options->job, "Job whose adapter or model answers, or a running one of kind serve");
  command->AddOption("--model", options->model, "Base model that answers, in place of JOB")
      ->Excludes(job);
  Option* checkpoint = command->AddOption("--checkpoint", options->checkpoints,
                                          std::string(kCheckpointHelp) +
                                              "; several answer side by side, each by a job "
                                              "of its own");
  command
      ->AddFlag("--delivered", options->delivered,
                "Beside --checkpoint: ask what JOB delivered, too")
      ->Needs(checkpoint);
  command->AddFlag("--base", options->base, "Ask the base without the adapter, too");
  command->AddOption("--system", options->system, "A system message before the conversation");
  command->AddOption("--max-new-tokens", options->max_new_tokens, "Longest answer, in tokens");
  command->AddOption("--temperature", options->temperature,
                     "Above 0: draw tokens (default: always the likeliest)");
  command->AddOption("--top-p", options->top_p,
                     "Draw from the likeliest tokens of this much probability");
  command->AddOption("--seed", options->seed, "Another seed draws another answer");
  command->AddOption("--gpu-type", options->gpu_type,
                     "Type of GPU, or CPU (default: that of JOB, or the only one)");
  command
      ->AddOption("--time-limit", options->time_limit,
                  "Longest time that the chat's own job may run")
      ->ShowDefault();
  AddProjectOption(command, options->project);
  command->Check([options] {
    if (options->job.empty() && options->model.empty()) return "needs a JOB, or --model MODEL";
    return options->job.empty() && !options->checkpoints.empty() ? "--checkpoint is of a JOB" : "";
  });
  command->Run([options](Connection& connection) { return Chat(connection, *options).Run(); });
}

}  // namespace sft::client
