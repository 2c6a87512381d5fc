#include "common/hub/push.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/base/artifact_source.h"
#include "client/base/interrupt.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "common/base/env.h"
#include "common/base/json.h"
#include "common/base/plain_text.h"
#include "common/hub/hub_access.h"
#include "common/io/file.h"
#include "sft/v1/data_service.grpc.pb.h"

namespace sft::client {
namespace {

struct PushOptions {
  std::string job, to, message, hub, token_file, ca_file;
  bool is_public = false;
};

std::string Variable(const std::string& name) { return GetEnv(name).value_or(""); }

// Where huggingface_hub keeps the token of a login; empty: nowhere.
std::string TokenFileOfLogin() {
  std::string file = Variable("HF_TOKEN_PATH");
  if (file.empty() && !Variable("HF_HOME").empty()) file = Variable("HF_HOME") + "/token";
  if (file.empty() && !Variable("HOME").empty()) {
    file = Variable("HOME") + "/.cache/huggingface/token";
  }
  return io::Exists(file) ? file : "";
}

absl::StatusOr<hub::HubAccess> AccessOf(const PushOptions& options) {
  std::string file = options.token_file;
  if (file.empty() && Variable("HF_TOKEN").empty()) file = TokenFileOfLogin();
  SFT_ASSIGN_OR_RETURN(hub::HubAccess access,
                       hub::HubAccessOf(options.hub, file, options.ca_file, Variable));
  if (access.offline) {
    return FailedPrecondition("HF_HUB_OFFLINE is set, and a push asks the hub: unset it");
  }
  if (access.token.empty()) {
    return PermissionDenied(
        fmt::format("there is no token for {}: set HF_TOKEN, or give a file with one by "
                    "--hub-token-file; it needs the right to write",
                    access.endpoint));
  }
  return access;
}

// Says what is sent: on a terminal in one line that is redrawn, else a line for each file.
class SendingLine {
 public:
  explicit SendingLine(Console& console) : console_(console) {}
  void On(const hub::PushFile& file, int64_t sent) {
    const int64_t percent = sent * 100 / std::max<int64_t>(file.size, 1);
    const bool same = file.path == path_ && (percent == percent_ || !console_.terminal);
    if (same) return;
    path_ = file.path;
    percent_ = percent;
    if (!console_.terminal) {
      console_.err << fmt::format("sends {} ({})\n", path_, Bytes(file.size));
      return;
    }
    std::string line = fmt::format("{}: {} % of {}", path_, percent, Bytes(file.size));
    line.resize(std::max<size_t>(1, static_cast<size_t>(console_.width) - 1), ' ');
    console_.err << "\r" << line << std::flush;
  }
  void End() {
    if (console_.terminal && !path_.empty()) console_.err << "\n";
    path_.clear();
  }

 private:
  Console& console_;
  std::string path_;
  int64_t percent_ = -1;
};

// Sends what a job delivered from the server to a model hub, with the user's own token.
class Pusher {
 public:
  Pusher(Connection& connection, PushOptions options, bool json)
      : connection_(connection), options_(std::move(options)), json_(json) {}

  ExitCode Run() {
    const absl::StatusOr<hub::Pushed> pushed = Push();
    if (Interrupt::Raised()) {
      connection_.console().err << "interrupted; the same command sends what is missing\n";
      return kInterrupted;
    }
    if (!pushed.ok()) return Fail(connection_, pushed.status());
    Show(*pushed);
    return kSucceeded;
  }

 private:
  absl::StatusOr<hub::Pushed> Push() {
    const std::optional<hub::ModelName> name = hub::ParseModelName(options_.to);
    if (!name) {
      return InvalidArgument(fmt::format(
          "--to {}: is no name of a repository: OWNER/NAME, or OWNER/NAME@BRANCH", options_.to));
    }
    SFT_ASSIGN_OR_RETURN(const hub::HubAccess access, AccessOf(options_));
    SFT_RETURN_IF_ERROR(LookUp());
    hub::HttpOptions http_options = hub::HttpOptionsOf(access.ca_file, Variable);
    http_options.stall_timeout = kAnswerTime;
    SFT_ASSIGN_OR_RETURN(const std::unique_ptr<hub::HttpClient> http,
                         hub::MakeHttpClient(http_options));
    SendingLine line(connection_.console());
    hub::HubPush push(
        {.hub = {.endpoint = access.endpoint,
                 .token = access.token,
                 .on_wait =
                     [&](const std::string& why) {
                       line.End();
                       connection_.console().err << OneLine(why) << "\n";
                     }},
         .open = [&](const hub::PushFile& file, int64_t offset) { return Open(file, offset); },
         .on_sent = [&](const hub::PushFile& file, int64_t sent) { line.On(file, sent); }},
        *http, connection_.clock());
    const hub::PushTarget target{.name = *name,
                                 .is_public = options_.is_public,
                                 .message = options_.message.empty()
                                                ? fmt::format("Result of job {}", options_.job)
                                                : options_.message};
    absl::StatusOr<hub::Pushed> pushed = push.Run(files_, target, Interrupt::Raised);
    line.End();
    return pushed;
  }

  absl::Status LookUp() {
    v1::GetArtifactRequest request;
    request.set_name(options_.job);
    SFT_ASSIGN_OR_RETURN(artifact_, connection_.Call(&v1::DataService::Stub::GetArtifact, request));
    if (artifact_.kind() != "adapter" && artifact_.kind() != "model") {
      return FailedPrecondition(fmt::format("{} delivered {}, which is no model", options_.job,
                                            OneLine(artifact_.kind())));
    }
    for (const v1::ArtifactFile& file : artifact_.files()) {
      if (!IsPlain(file.path())) {
        return InvalidArgument("the server names a file with control characters: " +
                               OneLine(file.path()));
      }
      files_.push_back({file.path(), file.blob().size(), file.blob().sha256()});
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<hub::HttpSource>> Open(const hub::PushFile& file, int64_t offset) {
    return std::make_unique<ArtifactSource>(connection_, artifact_.name(), file.path, offset);
  }

  void Show(const hub::Pushed& pushed) {
    Console& console = connection_.console();
    if (json_) {
      Json files = Json::array();
      for (const hub::PushFile& file : files_) {
        files.push_back({{"path", file.path}, {"sha256", file.sha256}, {"bytes", file.size}});
      }
      console.out << DumpJson(Json{{"url", pushed.url},
                                   {"commit", pushed.commit},
                                   {"kind", artifact_.kind()},
                                   {"new", pushed.is_new},
                                   {"private", pushed.is_private},
                                   {"sent_bytes", pushed.sent_bytes},
                                   {"files", files}},
                              2)
                  << "\n";
      return;
    }
    console.err << fmt::format("pushed {} files as commit {} of a {}{} repository\n", files_.size(),
                               pushed.commit, pushed.is_new ? "new, " : "",
                               pushed.is_private ? "private" : "public");
    console.out << pushed.url << "\n";
  }

  // What a hub may take to answer: it puts large files together, and makes a commit.
  static constexpr std::chrono::minutes kAnswerTime{2};

  Connection& connection_;
  const PushOptions options_;
  const bool json_;
  v1::Artifact artifact_;
  std::vector<hub::PushFile> files_;
};

}  // namespace

void AddPush(Command& app, Session& session) {
  Command* command =
      app.AddCommand("push", "Push what a job delivered to a repository of a model hub",
                     "sftctl push job-abc --to my-org/my-model");
  auto options = std::make_shared<PushOptions>();
  command
      ->AddOption("JOB", options->job,
                  "Job, or artifacts/NAME: an adapter, a full model, or an export")
      ->Required();
  command
      ->AddOption("--to", options->to,
                  "Repository, OWNER/NAME or OWNER/NAME@BRANCH; made if it is missing")
      ->Required();
  command->AddFlag("--public", options->is_public,
                   "A repository that is made is public (default: private)");
  command->AddOption("--message", options->message, "Message of the commit");
  command->AddOption("--hub", options->hub,
                     "Address of the hub (default: HF_ENDPOINT, else https://huggingface.co)");
  command->AddOption("--hub-token-file", options->token_file,
                     "File with a token that may write there (default: HF_TOKEN, else that of "
                     "huggingface_hub's login)");
  command->AddOption("--hub-ca", options->ca_file,
                     "PEM file with the authorities to trust for the hub");
  AddJsonFlag(command, session);
  command->Run([&session, options](Connection& connection) {
    return Pusher(connection, *options, session.json).Run();
  });
}

}  // namespace sft::client
