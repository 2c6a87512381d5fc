#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>

#include "client/commands/commands.h"
#include "client/base/interrupt.h"
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

void PrintResult(Connection& connection, const v1::BackupResult& result, const std::string& path,
                 bool json) {
  if (json) {
    connection.console().out << DumpJson(Json{{"path", path},
                                              {"database_bytes", result.database_bytes()},
                                              {"schema", result.schema()},
                                              {"blobs", result.blobs()},
                                              {"blob_bytes", result.blob_bytes()},
                                              {"checkpoint_blobs", result.checkpoint_blobs()},
                                              {"checkpoint_bytes", result.checkpoint_bytes()},
                                              {"seconds", result.seconds()},
                                              {"longest_step_ms", result.longest_step_ms()}},
                                         2)
                             << "\n";
    return;
  }
  connection.console().err << fmt::format(
      "database {}, schema {}; {} files of checkpoints of {}; it names {} files of {} in the "
      "server's blobs folder, which are not in it\n",
      Bytes(result.database_bytes()), result.schema(), result.checkpoint_blobs(),
      Bytes(result.checkpoint_bytes()), result.blobs(), Bytes(result.blob_bytes()));
  connection.console().out << path << "\n";
}

ExitCode Backup(Connection& connection, const BackupOptions& options, bool json) {
  if (!options.output.empty() && io::Exists(options.output)) {
    return Fail(connection, AlreadyExists(options.output + " exists; choose another folder"));
  }
  v1::BackupRequest request;
  request.set_to(options.to);
  request.set_download(!options.output.empty());
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
  PrintResult(connection, result, options.output.empty() ? result.path() : options.output, json);
  return kSucceeded;
}

}  // namespace

void AddAdmin(Command& app, Session& session) {
  Command* admin = app.AddCommand("admin", "What an operator does to the server",
                                  "sftctl admin backup --output sft-2026-01-31");
  admin->RequireCommand();
  AddProject(*admin, session);
  AddStorageQuotas(*admin, session);
  AddAccess(*admin, session);
  Command* command =
      admin->AddCommand("backup", "Copy the server's database and checkpoints while it goes on",
                        "sftctl admin backup --to /backup/sft-2026-01-31");
  auto options = std::make_shared<BackupOptions>();
  auto* to = command->AddOption("--to", options->to,
                                "Folder to make on the server's machine (default: backups/TIME in "
                                "its data folder)");
  command->AddOption("-o,--output", options->output, "Folder to make here instead")->Excludes(to);
  AddJsonFlag(command, session);
  command->Run([&session, options](Connection& connection) {
    return Backup(connection, *options, session.json);
  });
}

}  // namespace sft::client
