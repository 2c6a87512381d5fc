#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "client/base/command_line.h"
#include "client/base/connection.h"
#include "client/base/exit_codes.h"

namespace sft::client {

// Flags common to all commands. They live as long as the command line.
struct Session {
  std::string server;  // --server
  bool json = false;   // --json, on each command that has it
};

// Each function adds its command: flags, help with an example, and the action.
void AddSubmit(Command& app, Session& session);
void AddStatus(Command& app, Session& session);
void AddList(Command& app, Session& session);
void AddSweep(Command& app, Session& session);
void AddHold(Command& app, Session& session);       // hold and release
void AddProject(Command& admin, Session& session);  // admin project list, show and set
void AddLogs(Command& app);
void AddCancel(Command& app, Session& session);
void AddCheckpoints(Command& app, Session& session);  // checkpoint, checkpoints and resume
void AddWait(Command& app, Session& session);
void AddMetrics(Command& app, Session& session);
void AddCompare(Command& app, Session& session);
void AddProfile(Command& app, Session& session);
void AddAdmin(Command& app, Session& session);
void AddAccess(Command& admin, Session& session);  // user, token and audit of `admin`
void AddLogin(Command& app, Session& session);     // login and whoami
void AddEvents(Command& app, Session& session);
void AddDownload(Command& app, Session& session);
void AddEvaluate(Command& app, Session& session);
void AddExport(Command& app, Session& session);
void AddPush(Command& app, Session& session);
void AddGenerate(Command& app, Session& session);
void AddChat(Command& app, Session& session);
void AddData(Command& app, Session& session);
void AddModels(Command& app, Session& session);
void AddModelCache(Command& models, Session& session);  // pull and rm
void AddNodes(Command& app, Session& session);          // nodes and variants
// drain, cordon and resume below `nodes`, and drain as a command of its own.
void AddNodeHolds(Command& app, Command& nodes, Session& session);
void AddStorage(Command& app, Session& session);  // storage and rm
void AddStorageQuotas(Command& admin, Session& session);
void AddWebhook(Command& app, Session& session);
void AddPrice(Command& app, Session& session);
void AddStats(Command& app, Session& session);
void AddTop(Command& app, Session& session);
void AddWeb(Command& app, Session& session);
void AddExplain(Command& app);
void AddInit(Command& app, Session& session);
void AddDoctor(Command& app, Session& session);
void AddCompletion(Command& app);

void AddJsonFlag(Command* command, Session& session);
// --project, by default SFT_PROJECT.
Option* AddProjectOption(Command* command, std::string& project);

// Prints "sftctl: message" to err and returns the exit code for the status.
ExitCode Fail(Connection& connection, const absl::Status& status);

// After Ctrl-C: prints how to come back with `command`.
ExitCode Detached(Connection& connection, const std::string& command);

// Parses "60s", "5m", "2h", "1d", or a plain number of seconds.
absl::StatusOr<std::chrono::seconds> ParseDuration(const std::string& text);

// Follows the job with a progress view and prints how it ended; shared by submit, status and wait.
ExitCode FollowToTheEnd(Connection& connection, const std::string& name, bool json);

// Prints how a job ended, with its verdict and what to do next.
void PrintEnding(Connection& connection, const v1::Job& job);

}  // namespace sft::client
