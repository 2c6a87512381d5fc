#include "client/app/app.h"

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/output/text.h"
#include "common/base/duration.h"
#include "common/base/env.h"
#include "common/base/utf8.h"
#include "common/base/version.h"

namespace sft::client {

void AddJsonFlag(Command* command, Session& session) {
  command->AddFlag("--json", session.json, "Print JSON, for programs (docs/cli.md)");
}

Option* AddProjectOption(Command* command, std::string& project) {
  project = GetEnv("SFT_PROJECT").value_or("");
  return command->AddOption(
      "--project", project,
      "Project (default: SFT_PROJECT, else the one in which you have a role)");
}

ExitCode Fail(Connection& connection, const absl::Status& status) {
  connection.console().err << "sftctl: " << Lines(Message(status)) << "\n";
  return ExitCodeOf(status);
}

absl::StatusOr<std::chrono::seconds> ParseDuration(const std::string& text) {
  if (const auto duration = sft::ParseDuration(text)) return *duration;
  return InvalidArgument(
      fmt::format("'{}' is not a duration: must be a number with s, m, h or d, as in 90s", text));
}

namespace {

// Text sent to the server must be UTF-8; the shell passes any bytes.
absl::Status CheckArguments(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (IsUtf8(argument)) continue;
    const std::string before = i > 1 ? argv[i - 1] : "";
    const bool is_value = before.starts_with("-") && !argument.starts_with("-");
    return InvalidArgument(fmt::format("{} is not UTF-8: {}",
                                       is_value ? before : fmt::format("argument {}", i),
                                       OneLine(argument)));
  }
  return absl::OkStatus();
}

int ParseAndRun(int argc, const char* const* argv, const Console& console, const Connect& connect) {
  Session session;
  CommandLine line(
      "sftctl", "Submit fine-tuning jobs to an sft-server and follow them.",
      "Exit codes: 0 succeeded, 1 internal error, 2 usage or invalid job file, 3 not found, 4 "
      "unreachable\nor timed out, 5 refused, 10 job failed (user), 11 job failed (infrastructure), "
      "12 "
      "cancelled, 130 interrupted.\nExample:\n  sftctl submit job.toml --follow",
      fmt::format("sftctl {} (protocol {})", kVersion, kProtocol));
  Command& app = line.root();
  app.RequireCommand();
  app.AddOption(
      "--server", session.server,
      "Server as HOST:PORT; several with commas, where a standby may take its place: the one that "
      "serves is used (default: SFT_SERVER, then `server` of ~/.config/sft/config.toml, then "
      "the server of the last `login`, then 127.0.0.1:7070)");
  AddSubmit(app, session);
  AddSweep(app, session);
  AddStatus(app, session);
  AddList(app, session);
  AddLogs(app);
  AddCancel(app, session);
  AddHold(app, session);
  AddCheckpoints(app, session);
  AddWait(app, session);
  AddMetrics(app, session);
  AddCompare(app, session);
  AddProfile(app, session);
  AddEvents(app, session);
  AddDownload(app, session);
  AddEvaluate(app, session);
  AddExport(app, session);
  AddPush(app, session);
  AddGenerate(app, session);
  AddChat(app, session);
  AddNodes(app, session);
  AddData(app, session);
  AddModels(app, session);
  AddWebhook(app, session);
  AddTop(app, session);
  AddPrice(app, session);
  AddStats(app, session);
  AddStorage(app, session);
  AddLogin(app, session);
  AddWeb(app, session);
  AddAdmin(app, session);
  AddExplain(app);
  AddInit(app, session);
  AddDoctor(app, session);
  AddCompletion(app);
  const CommandLine::Choice choice = line.Parse(argc, argv, console);
  if (!choice.run) return choice.code;
  std::unique_ptr<Connection> connection = connect(session.server);
  if (connection == nullptr) return kUsage;
  if (choice.connect) {
    if (const absl::Status status = connection->Check(); !status.ok())
      return Fail(*connection, status);
  }
  return choice.run(*connection);
}

}  // namespace

int RunApp(int argc, const char* const* argv, Console console, const Connect& connect) {
  if (const absl::Status status = CheckArguments(argc, argv); !status.ok()) {
    console.err << "sftctl: " << Message(status) << "\n";
    return kUsage;
  }
  const int code = ParseAndRun(argc, argv, console, connect);
  console.out.flush();
  if (console.out) return code;
  console.err << "sftctl: standard output cannot be written to: what was printed is not complete\n";
  return code == kSucceeded ? kInternal : code;
}

}  // namespace sft::client
