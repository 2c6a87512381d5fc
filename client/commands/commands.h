#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "client/connection.h"
#include "client/exit_codes.h"

namespace sft::client {

// What the command line asked for: the flags of every command, and the command to run.
struct Session {
  // Runs with a checked connection; `connect` says whether the command needs one.
  using Command = std::function<ExitCode(Connection&)>;

  std::string server;  // --server
  bool json = false;   // --json, on each command that has it
  bool connect = true;
  Command command;
  const CLI::App* app = nullptr;  // the whole command line, for `completion`
};

// Each adds its subcommand: flags, help with an example, and a callback that sets session.command.
void AddSubmit(CLI::App& app, Session& session);
void AddStatus(CLI::App& app, Session& session);
void AddList(CLI::App& app, Session& session);
void AddSweep(CLI::App& app, Session& session);
void AddHold(CLI::App& app, Session& session);       // hold and release
void AddProject(CLI::App& admin, Session& session);  // admin project list and set
void AddLogs(CLI::App& app, Session& session);
void AddCancel(CLI::App& app, Session& session);
void AddCheckpoints(CLI::App& app, Session& session);  // checkpoint, checkpoints and resume
void AddWait(CLI::App& app, Session& session);
void AddMetrics(CLI::App& app, Session& session);
void AddCompare(CLI::App& app, Session& session);
void AddAdmin(CLI::App& app, Session& session);
void AddAccess(CLI::App& admin, Session& session);  // user, token and audit of `admin`
void AddLogin(CLI::App& app, Session& session);     // login and whoami
void AddEvents(CLI::App& app, Session& session);
void AddDownload(CLI::App& app, Session& session);
void AddNodes(CLI::App& app, Session& session);  // nodes, variants and models
// drain, cordon and resume, below `nodes` and (drain) for itself.
void AddNodeHolds(CLI::App& app, CLI::App& nodes, Session& session);
void AddStorage(CLI::App& app, Session& session);  // storage and rm
void AddStorageQuotas(CLI::App& admin, Session& session);
void AddStats(CLI::App& app, Session& session);
void AddExplain(CLI::App& app, Session& session);
void AddCompletion(CLI::App& app, Session& session);

// A subcommand with an example in its help.
CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& description,
                     const std::string& example);
void AddJsonFlag(CLI::App* command, Session& session);
// --project, by default SFT_PROJECT.
void AddProjectOption(CLI::App* command, std::string& project);

// Prints "sftctl: message" to err and returns the status's exit code.
ExitCode Fail(Connection& connection, const absl::Status& status);

// Says how to come back with `command`, after Ctrl-C.
ExitCode Detached(Connection& connection, const std::string& command);

// A check for options that take a whole number from `from` on.
CLI::Validator WholeNumber(int64_t from);

// "60s", "5m", "2h", "1d", or seconds as a plain number.
absl::StatusOr<std::chrono::seconds> ParseDuration(const std::string& text);

// Follows the job with a progress view, then says how it ended: shared by submit, status and wait.
ExitCode FollowToTheEnd(Connection& connection, const std::string& name, bool json);

// "place 3 in line, start 2026-..., end 2026-..."; empty: nothing is known.
std::string OutlookText(const v1::Outlook& outlook);

// Prints how an ended job ended, with its verdict and what to do next.
void PrintEnding(Connection& connection, const v1::Job& job);

}  // namespace sft::client
