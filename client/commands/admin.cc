#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>

#include "client/base/interrupt.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/paths.h"
#include "sft/v1/admin_service.grpc.pb.h"

namespace sft::client {
namespace {

struct BackupOptions {
  std::string to;      // a folder on the server's machine
  std::string output;  // a local folder
  bool with_keys = false, with_blobs = false, without_logs = false;
};

// Receives the files of a backup, one after the other.
class IncomingFiles {
 public:
  explicit IncomingFiles(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Take(const v1::BackupResponse& piece) {
    if (!io::IsSafeRelative(piece.file())) {
      return InvalidArgument("the server names a file outside the folder: " + piece.file());
    }
    if (piece.file() != name_) {
      SFT_RETURN_IF_ERROR(End());
      const std::string path = folder_ + "/" + piece.file();
      SFT_RETURN_IF_ERROR(io::MakeDirs(path.substr(0, path.rfind('/'))));
      SFT_ASSIGN_OR_RETURN(file_, io::AppendFile::Open(path));
      name_ = piece.file();
    }
    return file_->Append(piece.data());
  }
  absl::Status End() { return file_.has_value() ? file_->Sync() : absl::OkStatus(); }

 private:
  const std::string folder_;
  std::string name_;
  std::optional<io::AppendFile> file_;
};

// Makes a new folder that only its owner may read: a backup contains what users submit.
absl::Status MakeOwnFolder(const std::string& path) {
  SFT_RETURN_IF_ERROR(io::RemoveAll(path));
  SFT_RETURN_IF_ERROR(io::MakeDirs(path));
  if (::chmod(path.c_str(), 0700) != 0) return ErrnoStatus("cannot close " + path, errno);
  return absl::OkStatus();
}

// Warns about keys that are in a backup, and about what was asked for and is not in it: a server
// of an earlier release does not know the choice.
void WarnOfContent(Connection& connection, const v1::BackupResult& result,
                   const BackupOptions& options) {
  std::ostream& err = connection.console().err;
  if (result.has_keys()) {
    err << "warning: it holds the fleet's private keys. Whoever can read it can pose as the server "
           "and its users: keep it as you keep a key\n";
  } else if (options.with_keys) {
    err << "warning: no keys are in it: the server has none, or is of an earlier release\n";
  }
  if (options.with_blobs && !result.has_blobs()) {
    err << "warning: no data sets and adapters are in it: the server is of an earlier release\n";
  }
}

void PrintResult(Connection& connection, const v1::BackupResult& result, const std::string& path,
                 bool json) {
  const std::vector<std::string> left_out(result.left_out().begin(), result.left_out().end());
  if (json) {
    connection.console().out << DumpJson(Json{{"path", path},
                                              {"database_bytes", result.database_bytes()},
                                              {"schema", result.schema()},
                                              {"blobs", result.blobs()},
                                              {"blob_bytes", result.blob_bytes()},
                                              {"checkpoint_blobs", result.checkpoint_blobs()},
                                              {"checkpoint_bytes", result.checkpoint_bytes()},
                                              {"has_blobs", result.has_blobs()},
                                              {"log_bytes", result.log_bytes()},
                                              {"has_keys", result.has_keys()},
                                              {"left_out", left_out},
                                              {"seconds", result.seconds()},
                                              {"longest_step_ms", result.longest_step_ms()}},
                                         2)
                             << "\n";
    return;
  }
  connection.console().err << fmt::format(
      "database {}, schema {}; {} files of checkpoints of {}; logs and curves of {}\n",
      Bytes(result.database_bytes()), result.schema(), result.checkpoint_blobs(),
      Bytes(result.checkpoint_bytes()), Bytes(result.log_bytes()));
  if (result.has_blobs()) {
    connection.console().err << fmt::format("{} files of data sets and adapters of {}\n",
                                            result.blobs(), Bytes(result.blob_bytes()));
  }
  for (const std::string& each : left_out) {
    connection.console().err << fmt::format("not in it: {}\n", each);
  }
  connection.console().out << path << "\n";
}

ExitCode Backup(Connection& connection, const BackupOptions& options, bool json) {
  if (!options.output.empty() && io::Exists(options.output)) {
    return Fail(connection, AlreadyExists(options.output + " exists; choose another folder"));
  }
  v1::BackupRequest request;
  request.set_to(options.to);
  request.set_download(!options.output.empty());
  request.set_with_keys(options.with_keys);
  request.set_with_blobs(options.with_blobs);
  request.set_without_logs(options.without_logs);
  grpc::ClientContext context;
  Interrupt interrupt(context);
  const auto reader = connection.To<v1::AdminService>().Backup(&context, request);
  const std::string partial = options.output + ".partial";
  absl::Status saved = options.output.empty() ? absl::OkStatus() : MakeOwnFolder(partial);
  v1::BackupResponse response;
  v1::BackupResult result;
  IncomingFiles files(partial);
  while (saved.ok() && reader->Read(&response)) {
    if (response.has_result()) result = response.result();
    if (!response.file().empty()) saved = files.Take(response);
  }
  if (!saved.ok()) context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (saved.ok() && !status.ok()) return Fail(connection, connection.Describe(status));
  if (saved.ok()) saved = files.End();
  if (saved.ok() && !options.output.empty()) saved = io::RenameDurably(partial, options.output);
  if (!saved.ok()) return Fail(connection, saved);
  WarnOfContent(connection, result, options);
  PrintResult(connection, result, options.output.empty() ? result.path() : options.output, json);
  return kSucceeded;
}

}  // namespace

void AddAdmin(Command& app, Session& session) {
  Command* admin = app.AddCommand("admin", "Administer the server",
                                  "sftctl admin backup --output sft-2026-01-31");
  admin->RequireCommand();
  AddProject(*admin, session);
  AddStorageQuotas(*admin, session);
  AddAccess(*admin, session);
  Command* command =
      admin->AddCommand("backup", "Back up the server while it runs",
                        "sftctl admin backup --with-keys --with-blobs --to /backup/sft-2026-01-31");
  auto options = std::make_shared<BackupOptions>();
  auto* to = command->AddOption(
      "--to", options->to,
      "Folder to create on the server's machine (default: backups/TIME in its data folder)");
  auto* output = command->AddOption("-o,--output", options->output,
                                    "Folder to create on this machine instead");
  output->Excludes(to);
  command->AddFlag("--with-blobs", options->with_blobs, "Also copy data sets and adapters");
  command
      ->AddFlag(
          "--with-keys", options->with_keys,
          "Also copy the fleet's keys, which makes the backup a secret; not together with --output")
      ->Excludes(output);
  command->AddFlag("--without-logs", options->without_logs, "Leave out logs and curves");
  AddJsonFlag(command, session);
  command->Run([&session, options](Connection& connection) {
    return Backup(connection, *options, session.json);
  });
}

}  // namespace sft::client
