#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "client/base/artifact_download.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "common/base/json.h"
#include "sft/v1/data_service.grpc.pb.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

struct DownloadOptions {
  std::string job;
  std::string out;
};

// The artifact's folder without -o: a name of its own in the current folder. The job's texts are
// not used, because the submitter may be another person than the one who downloads.
std::string DefaultFolder(const std::string& job, const v1::Artifact& artifact) {
  const bool known =
      artifact.kind() == "model" || artifact.kind() == "answers" || artifact.kind() == "evaluation";
  const std::string kind = known ? artifact.kind() : "adapter";
  std::string name = ShortName(job) + "-" + kind;
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '_' && c != '.'; },
      '_');
  return name.starts_with('.') || name.starts_with('-') ? "_" + name : name;
}

ExitCode Download(Connection& connection, const DownloadOptions& options, bool json) {
  v1::GetArtifactRequest request;
  request.set_name(options.job);
  const auto artifact = connection.Call(&v1::DataService::Stub::GetArtifact, request);
  if (!artifact.ok()) return Fail(connection, artifact.status());
  std::string folder = options.out.empty() ? DefaultFolder(options.job, *artifact) : options.out;
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  absl::Status status = CheckNewFolder(folder);
  if (status.ok()) status = DownloadArtifact(connection, *artifact, folder);
  if (!status.ok()) return Fail(connection, status);
  if (json) {
    Json files = Json::array();
    for (const v1::ArtifactFile& file : artifact->files()) {
      files.push_back(
          {{"path", file.path()}, {"sha256", file.blob().sha256()}, {"bytes", file.blob().size()}});
    }
    connection.console().out
        << DumpJson(Json{{"folder", folder}, {"kind", artifact->kind()}, {"files", files}}, 2)
        << "\n";
  } else {
    connection.console().out << folder << "\n";
  }
  return kSucceeded;
}

}  // namespace

void AddDownload(Command& app, Session& session) {
  Command* command = app.AddCommand("download", "Fetch a job's adapter, full model or answers",
                                    "sftctl download job-abc -o my-adapter");
  auto options = std::make_shared<DownloadOptions>();
  command->AddOption("JOB", options->job, "Job, or artifacts/NAME")->Required();
  command->AddOption(
      "-o,--output", options->out,
      "Folder to create (default: JOB-adapter, JOB-model or JOB-answers in the current folder)");
  AddJsonFlag(command, session);
  command->Run([&session, options](Connection& connection) {
    return Download(connection, *options, session.json);
  });
}

}  // namespace sft::client
