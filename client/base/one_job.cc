#include "client/base/one_job.h"

#include <fmt/format.h>

#include "client/output/format.h"
#include "client/output/job_hooks.h"
#include "client/output/json.h"
#include "common/base/json.h"
#include "sft/v1/data_service.grpc.pb.h"
#include "sft/v1/job_service.grpc.pb.h"
#include "sft/v1/serving_service.grpc.pb.h"

namespace sft::client {
namespace {

// TOML's basic strings take what JSON writes.
std::string Quoted(const std::string& text) { return DumpJson(Json(text)); }

}  // namespace

absl::StatusOr<Answerer> AnswererOfJob(Connection& connection, const std::string& name,
                                       const std::string& checkpoint) {
  v1::GetJobRequest request;
  request.set_name(name);
  SFT_ASSIGN_OR_RETURN(const v1::Job job, connection.Call(&v1::JobService::Stub::GetJob, request));
  const Json spec = ParseOrderedJson(job.resolved_json());
  if (!spec.is_object()) return Internal("the server sent no settings of the job");
  const auto value = [&](const char* table, const char* key) {
    return spec.value(table, Json::object()).value(key, std::string());
  };
  Answerer answerer{.model = value("job", "model"),
                    .adapter = ShortName(job.name()),
                    .gpu_type = value("compute", "gpu_type"),
                    .project = ProjectOfName(job.name()),
                    .data = spec.value("data", Json::object())};
  if (!checkpoint.empty()) {
    answerer.adapter += "@" + checkpoint;
    return answerer;
  }
  v1::GetArtifactRequest wanted;
  wanted.set_name(name);
  SFT_ASSIGN_OR_RETURN(const v1::Artifact artifact,
                       connection.Call(&v1::DataService::Stub::GetArtifact, wanted));
  if (artifact.kind() == "model") {
    answerer.model = artifact.node_path();
    answerer.adapter.clear();
  }
  return answerer;
}

std::string ServesNoCheckpoint(const std::string& id) {
  return fmt::format(
      "{} answers already with what it was started with: give --checkpoint the job "
      "that trains",
      id);
}

std::string AnswererTables(const Answerer& answerer, const std::string& kind,
                           const std::string& name, const std::string& data) {
  // The server knows the template arguments of an adapter or a checkpoint. Those of a base model
  // stand above the first table, where a key belongs to no table.
  std::string text =
      answerer.adapter.empty() ? DataLines(answerer, {"template_arguments"}) : std::string();
  text += fmt::format("[job]\nkind = {}\nname = {}\nmodel = {}\nadapter = {}\n", Quoted(kind),
                      Quoted(name), Quoted(answerer.model), Quoted(answerer.adapter));
  if (!data.empty()) text += fmt::format("data = {}\n", Quoted(data));
  text += "[compute]\ngpu_count = 1\n";
  if (!answerer.gpu_type.empty()) {
    text += fmt::format("gpu_type = {}\n", Quoted(answerer.gpu_type));
  }
  return text;
}

std::string DataLines(const Answerer& answerer, const std::vector<std::string_view>& keys) {
  std::string lines;
  for (const std::string_view key : keys) {
    if (!answerer.data.is_object() || !answerer.data.contains(key)) continue;
    const Json& value = answerer.data.at(std::string(key));
    if (!value.empty()) lines += fmt::format("{} = {}\n", key, DumpJson(value));
  }
  return lines;
}

absl::StatusOr<v1::Job> SubmitAnswerer(Connection& connection, const Answerer& answerer,
                                       const v1::SubmitJobRequest& request) {
  absl::StatusOr<v1::Job> job = connection.Call(&v1::JobService::Stub::SubmitJob, request);
  if (absl::IsInvalidArgument(job.status()) && answerer.gpu_type.empty()) {
    return InvalidArgument(fmt::format(
        "{}; `sftctl variants` lists types of GPUs, --gpu-type takes one", Message(job.status())));
  }
  if (job.ok()) PrintSecrets(connection.console().err, *job);
  return job;
}

absl::Status AddRows(Connection& connection, const LocalFile& file, const std::string& project,
                     v1::SubmitJobRequest& request) {
  v1::JobFile& sent = *request.add_files();
  sent.set_key("job.data");
  sent.set_sha256(file.sha256);
  sent.set_size(file.size);
  sent.set_client_path(file.shown());
  return UploadDataset(connection, file, project);
}

std::string EndpointOf(Connection& connection, const std::string& id) {
  const auto served =
      connection.Call(&v1::ServingService::Stub::ListServedModels, v1::ListServedModelsRequest());
  if (!served.ok() || served->base_url().empty()) return "";
  return fmt::format("{}, model {} (on the server's machine)", served->base_url(), id);
}

void CancelOwn(Connection& connection, const std::string& id, const std::string& reason) {
  constexpr int kTries = 15;
  v1::CancelJobRequest request;
  request.set_name(id);
  request.set_reason(reason);
  grpc::Status status;
  for (int i = 0; i < kTries; ++i) {
    if (i > 0) connection.clock().Sleep(std::chrono::seconds(1));
    grpc::ClientContext context;
    rpc::SetDeadline(context, rpc::kUnaryDeadline);
    v1::Job job;
    status = connection.To<v1::JobService>().CancelJob(&context, request, &job);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
  }
  connection.console().err << (status.ok() ? fmt::format("cancelled {}\n", id)
                                           : fmt::format("end it with `sftctl cancel {}`\n", id));
}

}  // namespace sft::client
