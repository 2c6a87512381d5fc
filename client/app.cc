#include "client/app.h"

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "common/base/version.h"

namespace sft::client {

CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& description,
                     const std::string& example) {
  CLI::App* command = app.add_subcommand(name, description);
  command->footer("Example:\n  " + example);
  return command;
}

void AddJsonFlag(CLI::App* command, Session& session) {
  command->add_flag("--json", session.json, "Print JSON, for programs (docs/cli.md)");
}

ExitCode Fail(Connection& connection, const absl::Status& status) {
  connection.console().err << "sftctl: " << Message(status) << "\n";
  return ExitCodeOf(status);
}

absl::StatusOr<std::chrono::seconds> ParseDuration(const std::string& text) {
  size_t used = 0;
  long value = 0;
  while (used < text.size() && used < 9 && text[used] >= '0' && text[used] <= '9') {
    value = value * 10 + (text[used++] - '0');
  }
  const std::string unit = text.substr(used);
  const long scale = unit.empty() || unit == "s" ? 1
                     : unit == "m"               ? 60
                     : unit == "h"               ? 3600
                     : unit == "d"               ? 86400
                                                 : 0;
  if (used == 0 || scale == 0) {
    return InvalidArgument(
        fmt::format("'{}' is not a duration: must be a number with s, m, h or d, as in 90s", text));
  }
  return std::chrono::seconds(value * scale);
}

int RunApp(int argc, const char* const* argv, Console console, const Connect& connect) {
  Session session;
  CLI::App app("Submits fine-tuning jobs to an sft-server and watches them.", "sftctl");
  session.app = &app;
  app.require_subcommand(1);
  app.fallthrough();
  app.set_version_flag("--version", fmt::format("sftctl {} (protocol {})", kVersion, kProtocol));
  app.add_option(
      "--server", session.server,
      "Server as HOST:PORT (default: SFT_SERVER, then `server` of ~/.config/sft/config.toml, "
      "then 127.0.0.1:7070)");
  app.footer(
      "Exit codes: 0 succeeded, 2 usage or invalid job file, 3 not found, 4 unreachable or timed "
      "out,\n5 refused, 10 job failed (user), 11 job failed (infrastructure), 12 cancelled, 130 "
      "interrupted.\nExample:\n  sftctl submit job.toml --follow");
  AddSubmit(app, session);
  AddStatus(app, session);
  AddList(app, session);
  AddLogs(app, session);
  AddCancel(app, session);
  AddWait(app, session);
  AddMetrics(app, session);
  AddEvents(app, session);
  AddDownload(app, session);
  AddNodes(app, session);
  AddExplain(app, session);
  AddCompletion(app, session);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version are "errors" of this library with code 0.
    return app.exit(error, console.out, console.err) == 0 ? kSucceeded : kUsage;
  }
  std::unique_ptr<Connection> connection = connect(session.server);
  if (connection == nullptr) return kUsage;
  if (session.connect) {
    if (const absl::Status status = connection->Check(); !status.ok())
      return Fail(*connection, status);
  }
  return session.command(*connection);
}

}  // namespace sft::client
