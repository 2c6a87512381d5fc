#include "server/store/files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "server/store/tenancy.h"

namespace sft::server::store {
namespace {

#define SFT_DATASET_COLUMNS                                                                   \
  "sha256, size, rows, display_name, owner, created_us, odd_rows, first_odd_row, first_odd, " \
  "check_version, protocol"
#define SFT_ARTIFACT_COLUMNS \
  "id, job_id, attempt_uid, kind, node, node_path, files, bytes, created_us"

std::string FilesToJson(const std::vector<ArtifactFileRecord>& files) {
  nlohmann::json json = nlohmann::json::array();
  for (const ArtifactFileRecord& file : files) json.push_back({file.path, file.sha256, file.size});
  return DumpJson(json);
}

absl::StatusOr<std::vector<ArtifactFileRecord>> FilesFromJson(const std::string& text) {
  const nlohmann::json json = ParseJson(text);
  std::vector<ArtifactFileRecord> files;
  if (!json.is_array()) return DataLoss("the file list of an artifact cannot be read");
  for (const auto& file : json) {
    if (!file.is_array() || file.size() != 3 || !file[0].is_string() || !file[1].is_string() ||
        !file[2].is_number_integer()) {
      return DataLoss("the file list of an artifact cannot be read");
    }
    files.push_back(
        {file[0].get<std::string>(), file[1].get<std::string>(), file[2].get<int64_t>()});
  }
  return files;
}

absl::StatusOr<ArtifactRecord> ReadArtifact(const Statement& row) {
  ArtifactRecord artifact;
  artifact.id = row.Text(0);
  artifact.job_id = row.Text(1);
  artifact.attempt_uid = row.Text(2);
  artifact.kind = row.Text(3);
  artifact.node = row.Text(4);
  artifact.node_path = row.Text(5);
  SFT_ASSIGN_OR_RETURN(artifact.files, FilesFromJson(row.Text(6)));
  artifact.bytes = row.Int(7);
  artifact.created_us = row.Int(8);
  return artifact;
}

// Which blobs of the server's the artifact names now.
absl::Status PutArtifactBlobs(Database& db, const ArtifactRecord& artifact) {
  {
    SFT_ASSIGN_OR_RETURN(Statement clear,
                         db.Prepare("DELETE FROM artifact_blobs WHERE artifact = ?"));
    SFT_RETURN_IF_ERROR(clear.Bind(artifact.id).Run());
  }
  if (!artifact.node.empty()) return absl::OkStatus();
  for (const ArtifactFileRecord& file : artifact.files) {
    SFT_ASSIGN_OR_RETURN(Statement put,
                         db.Prepare("INSERT INTO artifact_blobs (sha256, artifact) VALUES (?, ?) "
                                    "ON CONFLICT DO NOTHING"));
    SFT_RETURN_IF_ERROR(put.Bind(file.sha256).Bind(artifact.id).Run());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PutDataset(Database& db, const DatasetRecord& dataset) {
  SFT_ASSIGN_OR_RETURN(
      Statement put,
      db.Prepare(
          "INSERT INTO datasets (" SFT_DATASET_COLUMNS
          ", last_used_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (sha256) DO "
          "UPDATE SET last_used_us = excluded.last_used_us, rows = excluded.rows, "
          "odd_rows = excluded.odd_rows, first_odd_row = excluded.first_odd_row, "
          "first_odd = excluded.first_odd, check_version = excluded.check_version, "
          "protocol = excluded.protocol"));
  put.Bind(dataset.sha256).Bind(dataset.size).Bind(dataset.rows).Bind(dataset.display_name);
  put.Bind(dataset.owner).Bind(dataset.created_us);
  put.Bind(dataset.odd_rows).Bind(dataset.first_odd_row).Bind(dataset.first_odd);
  put.Bind(int64_t{dataset.check_version}).Bind(int64_t{dataset.protocol});
  return put.Bind(dataset.created_us).Run();
}

absl::StatusOr<std::optional<DatasetRecord>> FindDataset(Database& db, const std::string& sha256) {
  SFT_ASSIGN_OR_RETURN(Statement get,
                       db.Prepare("SELECT " SFT_DATASET_COLUMNS " FROM datasets WHERE sha256 = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(sha256).Step());
  if (!row) return std::optional<DatasetRecord>();
  return std::optional<DatasetRecord>(
      {get.Text(0), get.Int(1), get.Int(2), get.Text(3), get.Text(4), get.Int(5), get.Int(6),
       get.Int(7), get.Text(8), static_cast<int>(get.Int(9)), static_cast<int>(get.Int(10))});
}

absl::StatusOr<ArtifactRecord> PutArtifact(Database& db, ArtifactRecord artifact) {
  SFT_ASSIGN_OR_RETURN(
      Statement put,
      db.Prepare(
          "INSERT INTO artifacts (" SFT_ARTIFACT_COLUMNS
          ", last_used_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (attempt_uid, kind) "
          "DO UPDATE SET "
          "node = excluded.node, node_path = excluded.node_path, files = excluded.files, bytes = "
          "excluded.bytes RETURNING id, created_us"));
  put.Bind(artifact.id).Bind(artifact.job_id).Bind(artifact.attempt_uid).Bind(artifact.kind);
  put.Bind(artifact.node).Bind(artifact.node_path).Bind(FilesToJson(artifact.files));
  put.Bind(artifact.bytes).Bind(artifact.created_us);
  SFT_ASSIGN_OR_RETURN(const bool row, put.Bind(artifact.created_us).Step());
  if (!row) return Internal("an inserted artifact has no id");
  artifact.id = put.Text(0);
  artifact.created_us = put.Int(1);
  SFT_RETURN_IF_ERROR(put.Run());
  SFT_RETURN_IF_ERROR(PutArtifactBlobs(db, artifact));
  return artifact;
}

absl::StatusOr<ArtifactRecord> GetArtifact(Database& db, const std::string& id) {
  SFT_ASSIGN_OR_RETURN(Statement get,
                       db.Prepare("SELECT " SFT_ARTIFACT_COLUMNS " FROM artifacts WHERE id = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(id).Step());
  if (!row) return NoArtifact(id);
  return ReadArtifact(get);
}

absl::StatusOr<std::vector<ArtifactRecord>> ArtifactsOfJob(Database& db,
                                                           const std::string& job_id) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT " SFT_ARTIFACT_COLUMNS
                                  " FROM artifacts WHERE job_id = ? ORDER BY created_us "
                                  "DESC, id LIMIT 100"));
  list.Bind(job_id);
  std::vector<ArtifactRecord> artifacts;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return artifacts;
    SFT_ASSIGN_OR_RETURN(ArtifactRecord artifact, ReadArtifact(list));
    artifacts.push_back(std::move(artifact));
  }
}

}  // namespace sft::server::store
