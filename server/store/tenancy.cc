#include "server/store/tenancy.h"

#include <fmt/format.h>

#include "server/store/jobs.h"

namespace sft::server::store {

absl::Status PutDatasetOwner(Database& db, const std::string& sha256, const std::string& project,
                             const std::string& owner, const std::string& display_name,
                             int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(
      Statement put,
      db.Prepare("INSERT OR IGNORE INTO dataset_owners (sha256, project, owner, display_name, "
                 "created_us) VALUES (?, ?, ?, ?, ?)"));
  return put.Bind(sha256).Bind(project).Bind(owner).Bind(display_name).Bind(now_us).Run();
}

absl::StatusOr<bool> OwnsDataset(Database& db, const std::string& project,
                                 const std::string& sha256) {
  SFT_ASSIGN_OR_RETURN(Statement find,
                       db.Prepare("SELECT 1 FROM dataset_owners WHERE sha256 = ? AND project = ?"));
  return find.Bind(sha256).Bind(project).Step();
}

absl::StatusOr<bool> DropDatasetOwner(Database& db, const std::string& project,
                                      const std::string& sha256) {
  SFT_ASSIGN_OR_RETURN(Statement drop,
                       db.Prepare("DELETE FROM dataset_owners WHERE sha256 = ? AND project = ?"));
  SFT_RETURN_IF_ERROR(drop.Bind(sha256).Bind(project).Run());
  SFT_ASSIGN_OR_RETURN(Statement left,
                       db.Prepare("SELECT 1 FROM dataset_owners WHERE sha256 = ? LIMIT 1"));
  return left.Bind(sha256).Step();
}

absl::StatusOr<bool> NodeNeedsBlob(Database& db, const std::string& node,
                                   const std::string& sha256) {
  SFT_ASSIGN_OR_RETURN(
      Statement find,
      db.Prepare("SELECT 1 FROM attempt_nodes n JOIN attempts a ON a.uid = n.attempt_uid WHERE "
                 "n.node = ?1 AND n.forgotten = 0 AND (EXISTS (SELECT 1 FROM job_files f WHERE "
                 "f.job_id = a.job_id AND f.sha256 = ?2) OR EXISTS (SELECT 1 FROM checkpoint_files "
                 "c WHERE c.attempt_uid = a.resume_uid AND c.step = a.resume_step AND c.sha256 = "
                 "?2)) LIMIT 1"));
  return find.Bind(node).Bind(sha256).Step();
}

absl::StatusOr<bool> NodeNeedsModel(Database& db, const std::string& node,
                                    const std::string& model) {
  SFT_ASSIGN_OR_RETURN(
      Statement find,
      db.Prepare(
          "SELECT 1 FROM attempt_nodes n JOIN attempts a ON a.uid = n.attempt_uid JOIN jobs j "
          "ON j.id = a.job_id WHERE n.node = ?1 AND n.forgotten = 0 AND (j.model = ?2 OR "
          "substr(j.model, 1, length(?2) + 1) = ?2 || '@') LIMIT 1"));
  return find.Bind(node).Bind(model).Step();
}

absl::StatusOr<std::string> ProjectOfJob(Database& db, const std::string& id) {
  SFT_ASSIGN_OR_RETURN(Statement find, db.Prepare("SELECT project FROM jobs WHERE id = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, find.Bind(id).Step());
  if (!row) return NoJob(id);
  return find.Text(0);
}

absl::StatusOr<std::string> ProjectOfArtifact(Database& db, const std::string& id) {
  SFT_ASSIGN_OR_RETURN(Statement find,
                       db.Prepare("SELECT j.project FROM artifacts a JOIN jobs j ON j.id = "
                                  "a.job_id WHERE a.id = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, find.Bind(id).Step());
  if (!row) return NoArtifact(id);
  return find.Text(0);
}

absl::Status NoArtifact(const std::string& id) {
  return NotFound(fmt::format("no artifact \"{}\"", id));
}

}  // namespace sft::server::store
