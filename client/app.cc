#include "client/app.h"

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/output/text.h"
#include "common/base/duration.h"
#include "common/base/edit_distance.h"
#include "common/base/env.h"
#include "common/base/utf8.h"
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

void AddProjectOption(CLI::App* command, std::string& project) {
  project = GetEnv("SFT_PROJECT").value_or("");
  command->add_option("--project", project,
                      "Project (default: SFT_PROJECT, else the one in which you have a role)");
}

ExitCode Fail(Connection& connection, const absl::Status& status) {
  connection.console().err << "sftctl: " << Lines(Message(status)) << "\n";
  return ExitCodeOf(status);
}

CLI::Validator WholeNumber(int64_t from) {
  // More digits would not fit into the options' types.
  constexpr size_t kMaxDigits = 9;
  const auto check = [from](const std::string& text) -> std::string {
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
    if (digits && text.size() <= kMaxDigits && std::stoll(text) >= from) return "";
    return fmt::format("must be a whole number from {} to 999999999, but is '{}'", from, text);
  };
  return CLI::Validator(check, "");
}

absl::StatusOr<std::chrono::seconds> ParseDuration(const std::string& text) {
  if (const auto duration = sft::ParseDuration(text)) return *duration;
  return InvalidArgument(
      fmt::format("'{}' is not a duration: must be a number with s, m, h or d, as in 90s", text));
}

namespace {

// What travels to the server must be UTF-8; the shell passes any bytes.
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

// What the parser calls a missing command is mostly a misspelt one; empty: it is not.
std::string UnknownCommand(const CLI::App& app) {
  const std::vector<std::string> left = app.remaining();
  if (!app.get_subcommands().empty() || left.empty() || left.front().starts_with("-")) return "";
  const std::string& word = left.front();
  std::string nearest;
  size_t best = SuggestionLimit(word) + 1;
  for (const CLI::App* command : app.get_subcommands({})) {
    const size_t distance = EditDistance(word, command->get_name());
    if (distance < best) best = distance, nearest = command->get_name();
  }
  return fmt::format("no command is called '{}'{}; `sftctl --help` lists them", OneLine(word),
                     nearest.empty() ? "" : fmt::format(", did you mean {}?", nearest));
}

int ReportParseError(const CLI::App& app, const CLI::ParseError& error, const Console& console) {
  if (const std::string unknown = UnknownCommand(app); !unknown.empty()) {
    console.err << "sftctl: " << unknown << "\n";
    return kUsage;
  }
  // Help and version are "errors" of this library with code 0.
  return app.exit(error, console.out, console.err) == 0 ? kSucceeded : kUsage;
}

int ParseAndRun(int argc, const char* const* argv, const Console& console, const Connect& connect) {
  Session session;
  CLI::App app("Submits fine-tuning jobs to an sft-server and watches them.", "sftctl");
  session.app = &app;
  app.require_subcommand(1);
  app.fallthrough();
  app.set_version_flag("--version", fmt::format("sftctl {} (protocol {})", kVersion, kProtocol));
  app.add_option(
      "--server", session.server,
      "Server as HOST:PORT (default: SFT_SERVER, then `server` of ~/.config/sft/config.toml, "
      "then where `login` was last, then 127.0.0.1:7070)");
  app.footer(
      "Exit codes: 0 succeeded, 1 internal error, 2 usage or invalid job file, 3 not found, 4 "
      "unreachable\nor timed out, 5 refused, 10 job failed (user), 11 job failed (infrastructure), "
      "12 "
      "cancelled, 130 interrupted.\nExample:\n  sftctl submit job.toml --follow");
  AddSubmit(app, session);
  AddSweep(app, session);
  AddStatus(app, session);
  AddList(app, session);
  AddLogs(app, session);
  AddCancel(app, session);
  AddHold(app, session);
  AddCheckpoints(app, session);
  AddWait(app, session);
  AddMetrics(app, session);
  AddCompare(app, session);
  AddEvents(app, session);
  AddDownload(app, session);
  AddNodes(app, session);
  AddStats(app, session);
  AddStorage(app, session);
  AddLogin(app, session);
  AddAdmin(app, session);
  AddExplain(app, session);
  AddCompletion(app, session);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return ReportParseError(app, error, console);
  }
  std::unique_ptr<Connection> connection = connect(session.server);
  if (connection == nullptr) return kUsage;
  if (session.connect) {
    if (const absl::Status status = connection->Check(); !status.ok())
      return Fail(*connection, status);
  }
  return session.command(*connection);
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
