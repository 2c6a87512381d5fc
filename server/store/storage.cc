#include "server/store/storage.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/store/files.h"
#include "server/store/states.h"

namespace sft::server::store {
namespace {

#define SFT_HOLDER_COLUMNS "j.id, j.project, j.owner, j.display_name, j.state, j.ended_us"

Holder ReadHolder(const Statement& row, int at) {
  Holder holder;
  holder.job_id = row.Text(at);
  holder.project = row.Text(at + 1);
  holder.owner = row.Text(at + 2);
  holder.display_name = row.Text(at + 3);
  holder.live = !IsTerminal(static_cast<JobState>(row.Int(at + 4)));
  holder.ended_us = row.Int(at + 5);
  return holder;
}

absl::Status FillUse(Database& db, DatasetUse& use) {
  {
    SFT_ASSIGN_OR_RETURN(Statement list,
                         db.Prepare("SELECT project FROM dataset_owners WHERE sha256 = ? ORDER "
                                    "BY project LIMIT 100"));
    list.Bind(use.dataset.sha256);
    while (true) {
      SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
      if (!row) break;
      use.projects.push_back(list.Text(0));
    }
  }
  SFT_ASSIGN_OR_RETURN(
      Statement count,
      db.Prepare("SELECT count(*), coalesce(sum(state " SFT_IS_LIVE
                 "), 0), coalesce(max(ended_us), 0) FROM "
                 "jobs WHERE id IN (SELECT job_id FROM job_files WHERE sha256 = ? AND sha256 != "
                 "'')"));
  SFT_ASSIGN_OR_RETURN(const bool row, count.Bind(use.dataset.sha256).Step());
  if (!row) return absl::OkStatus();
  use.jobs = count.Int(0);
  use.live_jobs = count.Int(1);
  use.last_used_us = std::max(use.last_used_us, count.Int(2));
  return absl::OkStatus();
}

DatasetUse ReadDataset(const Statement& row) {
  DatasetUse use;
  use.dataset.sha256 = row.Text(0);
  use.dataset.size = row.Int(1);
  use.dataset.rows = row.Int(2);
  use.dataset.display_name = row.Text(3);
  use.dataset.owner = row.Text(4);
  use.dataset.created_us = row.Int(5);
  use.last_used_us = row.Int(6);
  return use;
}

// `id, bytes, node, node_path, kind, last_used_us`, then the holder; without the files.
ArtifactUse ReadArtifact(const Statement& row) {
  ArtifactUse use;
  use.artifact.id = row.Text(0);
  use.artifact.bytes = row.Int(1);
  use.artifact.node = row.Text(2);
  use.artifact.node_path = row.Text(3);
  use.artifact.kind = row.Text(4);
  use.last_used_us = row.Int(5);
  use.holder = ReadHolder(row, 6);
  use.artifact.job_id = use.holder.job_id;
  use.last_used_us = std::max(use.last_used_us, use.holder.ended_us);
  return use;
}

Removal ReadRemoval(const Statement& row) {
  return {
      row.Text(0), static_cast<int>(row.Int(1)), row.Int(2), row.Text(3), row.Int(4), row.Text(5),
      row.Text(6)};
}

}  // namespace

absl::StatusOr<std::vector<DatasetUse>> DatasetUses(Database& db, const std::string& after,
                                                    int limit) {
  std::vector<DatasetUse> uses;
  {
    SFT_ASSIGN_OR_RETURN(
        Statement list,
        db.Prepare("SELECT sha256, size, rows, display_name, owner, created_us, last_used_us FROM "
                   "datasets WHERE sha256 > ? ORDER BY sha256 LIMIT ?"));
    list.Bind(after).Bind(limit);
    while (true) {
      SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
      if (!row) break;
      uses.push_back(ReadDataset(list));
    }
  }
  for (DatasetUse& use : uses) SFT_RETURN_IF_ERROR(FillUse(db, use));
  return uses;
}

absl::Status NoDataset(const std::string& sha256) {
  return NotFound(fmt::format("no data set {}: `sftctl storage` shows them", sha256));
}

absl::StatusOr<DatasetUse> DatasetUseOf(Database& db, const std::string& sha256) {
  DatasetUse use;
  {
    SFT_ASSIGN_OR_RETURN(
        Statement get,
        db.Prepare("SELECT sha256, size, rows, display_name, owner, created_us, last_used_us FROM "
                   "datasets WHERE sha256 = ?"));
    SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(sha256).Step());
    if (!row) return NoDataset(sha256);
    use = ReadDataset(get);
  }
  SFT_RETURN_IF_ERROR(FillUse(db, use));
  return use;
}

absl::StatusOr<DatasetJobs> JobsWithDataset(Database& db, const std::string& sha256,
                                            const std::string& project, int limit) {
  DatasetJobs jobs;
  {
    SFT_ASSIGN_OR_RETURN(
        Statement count,
        db.Prepare("SELECT count(*), coalesce(sum(state " SFT_IS_LIVE
                   "), 0) FROM jobs WHERE id IN (SELECT "
                   "job_id FROM job_files WHERE sha256 = ? AND sha256 != '') AND ? IN ('', "
                   "project)"));
    SFT_ASSIGN_OR_RETURN(const bool row, count.Bind(sha256).Bind(project).Step());
    if (row) jobs.all = count.Int(0), jobs.live = count.Int(1);
  }
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT id FROM jobs WHERE id IN (SELECT job_id FROM job_files WHERE sha256 = ? "
                 "AND sha256 != '') AND ? IN ('', project) ORDER BY state " SFT_IS_LIVE
                 " DESC, sequence DESC "
                 "LIMIT ?"));
  list.Bind(sha256).Bind(project).Bind(limit);
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return jobs;
    jobs.ids.push_back(list.Text(0));
  }
}

absl::Status UseDataset(Database& db, const std::string& sha256, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE datasets SET last_used_us = ? WHERE sha256 = ?"));
  SFT_RETURN_IF_ERROR(update.Bind(now_us).Bind(sha256).Run());
  if (db.changes() > 0) return absl::OkStatus();
  return Aborted(fmt::format("data set {} was removed meanwhile: upload it again", sha256));
}

absl::Status DeleteDataset(Database& db, const std::string& sha256) {
  SFT_ASSIGN_OR_RETURN(Statement remove, db.Prepare("DELETE FROM datasets WHERE sha256 = ?"));
  return remove.Bind(sha256).Run();
}

absl::StatusOr<std::vector<ArtifactUse>> ArtifactUses(Database& db, const std::string& after,
                                                      int limit) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare(
          "SELECT a.id, a.bytes, a.node, a.node_path, a.kind, a.last_used_us, " SFT_HOLDER_COLUMNS
          " FROM artifacts a JOIN jobs j ON j.id = a.job_id WHERE a.id > "
          "? ORDER BY a.id LIMIT ?"));
  list.Bind(after).Bind(limit);
  std::vector<ArtifactUse> uses;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return uses;
    uses.push_back(ReadArtifact(list));
  }
}

absl::StatusOr<ArtifactUse> ArtifactUseOf(Database& db, const std::string& id) {
  SFT_ASSIGN_OR_RETURN(
      Statement get,
      db.Prepare(
          "SELECT a.id, a.bytes, a.node, a.node_path, a.kind, a.last_used_us, " SFT_HOLDER_COLUMNS
          " FROM artifacts a JOIN jobs j ON j.id = a.job_id WHERE a.id = "
          "?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(id).Step());
  if (!row) return NotFound(fmt::format("no artifact \"{}\": `sftctl storage` shows them", id));
  return ReadArtifact(get);
}

absl::Status TouchArtifact(Database& db, const std::string& id, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE artifacts SET last_used_us = ? WHERE id = ?"));
  return update.Bind(now_us).Bind(id).Run();
}

absl::StatusOr<std::vector<ArtifactFileRecord>> DeleteArtifact(Database& db,
                                                               const ArtifactRecord& artifact) {
  SFT_ASSIGN_OR_RETURN(const ArtifactRecord whole, GetArtifact(db, artifact.id));
  {
    // Its rows of artifact_blobs go with it.
    SFT_ASSIGN_OR_RETURN(Statement remove, db.Prepare("DELETE FROM artifacts WHERE id = ?"));
    SFT_RETURN_IF_ERROR(remove.Bind(artifact.id).Run());
  }
  std::vector<ArtifactFileRecord> unused;
  if (!whole.node.empty()) return unused;
  for (const ArtifactFileRecord& file : whole.files) {
    const bool again = std::any_of(unused.begin(), unused.end(),
                                   [&](const auto& each) { return each.sha256 == file.sha256; });
    SFT_ASSIGN_OR_RETURN(const bool used, BlobInUse(db, file.sha256));
    if (!used && !again) unused.push_back(file);
  }
  return unused;
}

absl::StatusOr<bool> BlobInUse(Database& db, const std::string& sha256) {
  SFT_ASSIGN_OR_RETURN(Statement find,
                       db.Prepare("SELECT 1 FROM artifact_blobs WHERE sha256 = ? UNION ALL SELECT "
                                  "1 FROM datasets WHERE sha256 = ? LIMIT 1"));
  return find.Bind(sha256).Bind(sha256).Step();
}

absl::StatusOr<std::set<std::string>> NamedBlobs(Database& db, bool of_checkpoints) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare(of_checkpoints
                     ? "SELECT sha256 FROM checkpoint_files"
                     : "SELECT sha256 FROM artifact_blobs UNION SELECT sha256 FROM datasets"));
  std::set<std::string> names;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return names;
    names.insert(list.Text(0));
  }
}

absl::StatusOr<bool> IsArtifactsBlob(Database& db, const std::string& sha256) {
  SFT_ASSIGN_OR_RETURN(Statement find,
                       db.Prepare("SELECT 1 FROM artifact_blobs WHERE sha256 = ? LIMIT 1"));
  return find.Bind(sha256).Step();
}

absl::StatusOr<std::string> LiveJobWithAdapter(Database& db, const std::string& artifact_id) {
  SFT_ASSIGN_OR_RETURN(
      Statement find,
      db.Prepare("SELECT j.id FROM artifact_blobs b JOIN job_files f ON f.sha256 = b.sha256 AND "
                 "f.sha256 != '' JOIN jobs j ON j.id = f.job_id WHERE b.artifact = ? AND "
                 "substr(f.key, 1, 12) = 'job.adapter/' AND j.state " SFT_IS_LIVE " LIMIT 1"));
  SFT_ASSIGN_OR_RETURN(const bool row, find.Bind(artifact_id).Step());
  return row ? find.Text(0) : std::string();
}

absl::StatusOr<std::string> LiveJobWithModel(Database& db, const std::string& path) {
  SFT_ASSIGN_OR_RETURN(Statement find, db.Prepare("SELECT id FROM jobs WHERE state " SFT_IS_LIVE
                                                  " AND model = ? LIMIT 1"));
  SFT_ASSIGN_OR_RETURN(const bool row, find.Bind(path).Step());
  return row ? find.Text(0) : std::string();
}

absl::StatusOr<std::vector<CheckpointUse>> CheckpointUses(Database& db, const std::string& after,
                                                          int limit) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT sum(p.bytes), " SFT_HOLDER_COLUMNS
                 " FROM checkpoints c JOIN checkpoint_parts p ON p.attempt_uid = c.attempt_uid AND "
                 "p.step = c.step JOIN jobs j ON j.id = c.job_id WHERE c.deleted_us = 0 AND "
                 "p.place " SFT_ON_SERVER
                 " AND c.job_id > ? GROUP BY c.job_id ORDER BY c.job_id LIMIT ?"));
  list.Bind(after).Bind(limit);
  std::vector<CheckpointUse> uses;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return uses;
    uses.push_back({ReadHolder(list, 1), list.Int(0)});
  }
}

absl::StatusOr<std::optional<Holder>> HolderOfAttempt(Database& db, const std::string& uid) {
  SFT_ASSIGN_OR_RETURN(Statement get,
                       db.Prepare("SELECT " SFT_HOLDER_COLUMNS
                                  " FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE a.uid = "
                                  "?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(uid).Step());
  return row ? std::optional<Holder>(ReadHolder(get, 0)) : std::nullopt;
}

absl::StatusOr<std::optional<Holder>> HolderOfJob(Database& db, const std::string& id) {
  SFT_ASSIGN_OR_RETURN(Statement get,
                       db.Prepare("SELECT " SFT_HOLDER_COLUMNS " FROM jobs j WHERE j.id = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(id).Step());
  return row ? std::optional<Holder>(ReadHolder(get, 0)) : std::nullopt;
}

absl::Status PutRemoval(Database& db, const Removal& removal) {
  SFT_ASSIGN_OR_RETURN(Statement put,
                       db.Prepare("INSERT OR REPLACE INTO removals (job_id, kind, time_us, who, "
                                  "bytes, node, path) VALUES (?, ?, ?, ?, ?, ?, ?)"));
  put.Bind(removal.job_id).Bind(removal.kind).Bind(removal.time_us).Bind(removal.who);
  return put.Bind(removal.bytes).Bind(removal.node).Bind(removal.path).Run();
}

absl::StatusOr<std::optional<Removal>> RemovalOf(Database& db, const std::string& job_id,
                                                 int kind) {
  SFT_ASSIGN_OR_RETURN(
      Statement get,
      db.Prepare("SELECT job_id, kind, time_us, who, bytes, node, path FROM removals WHERE job_id "
                 "= ? AND kind = ? ORDER BY time_us DESC LIMIT 1"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(job_id).Bind(kind).Step());
  return row ? std::optional<Removal>(ReadRemoval(get)) : std::nullopt;
}

absl::StatusOr<std::vector<std::string>> RemovedOnNode(Database& db, const std::string& node,
                                                       int64_t since_us) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT path FROM removals WHERE node = ? AND node != '' AND "
                                  "time_us > ? ORDER BY path LIMIT 1000"));
  list.Bind(node).Bind(since_us);
  std::vector<std::string> paths;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return paths;
    paths.push_back(list.Text(0));
  }
}

absl::StatusOr<std::vector<Quota>> Quotas(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT project, dataset_bytes, artifact_bytes FROM "
                                  "storage_quotas ORDER BY project LIMIT 10000"));
  std::vector<Quota> quotas;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return quotas;
    quotas.push_back({list.Text(0), list.Int(1), list.Int(2)});
  }
}

absl::StatusOr<std::optional<Quota>> QuotaOf(Database& db, const std::string& project) {
  SFT_ASSIGN_OR_RETURN(Statement get,
                       db.Prepare("SELECT project, dataset_bytes, artifact_bytes FROM "
                                  "storage_quotas WHERE project = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(project).Step());
  if (!row) return std::optional<Quota>();
  return std::optional<Quota>({get.Text(0), get.Int(1), get.Int(2)});
}

absl::Status PutQuota(Database& db, const Quota& quota) {
  SFT_ASSIGN_OR_RETURN(Statement put,
                       db.Prepare("INSERT OR REPLACE INTO storage_quotas (project, dataset_bytes, "
                                  "artifact_bytes) VALUES (?, ?, ?)"));
  return put.Bind(quota.project).Bind(quota.dataset_bytes).Bind(quota.artifact_bytes).Run();
}

absl::StatusOr<int64_t> DatasetBytesOf(Database& db, const std::string& project) {
  SFT_ASSIGN_OR_RETURN(Statement sum,
                       db.Prepare("SELECT coalesce(sum(d.size), 0) FROM dataset_owners p JOIN "
                                  "datasets d ON d.sha256 = p.sha256 WHERE p.project = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, sum.Bind(project).Step());
  return row ? sum.Int(0) : 0;
}

}  // namespace sft::server::store
