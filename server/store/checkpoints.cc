#include "server/store/checkpoints.h"

#include <fmt/format.h>

#include "server/store/progress.h"
#include "server/store/states.h"

namespace sft::server::store {
namespace {

// Whole, or of a live attempt that may complete it: not what one that ended left in parts.
#define SFT_MAY_BE_RESUMED                                                                   \
  "(c.committed_us > 0 OR EXISTS (SELECT 1 FROM attempts a WHERE a.uid = c.attempt_uid AND " \
  "a.state " SFT_IS_LIVE "))"
#define SFT_CHECKPOINT_COLUMNS                                                                    \
  "attempt_uid, step, job_id, attempt, epoch, reason, metric, best, bytes, problem, created_us, " \
  "committed_us, deleted_us"

CheckpointRecord ReadCheckpoint(const Statement& row) {
  CheckpointRecord checkpoint;
  checkpoint.attempt_uid = row.Text(0);
  checkpoint.step = row.Int(1);
  checkpoint.job_id = row.Text(2);
  checkpoint.attempt = static_cast<int>(row.Int(3));
  checkpoint.epoch = row.Int(4);
  checkpoint.reason = row.Text(5);
  if (!row.IsNull(6)) checkpoint.metric = row.Real(6);
  checkpoint.best = row.Bool(7);
  checkpoint.bytes = row.Int(8);
  checkpoint.problem = row.Text(9);
  checkpoint.created_us = row.Int(10);
  checkpoint.committed_us = row.Int(11);
  checkpoint.deleted_us = row.Int(12);
  return checkpoint;
}

absl::StatusOr<CheckpointRecord> GetCheckpoint(Database& db, const std::string& attempt_uid,
                                               int64_t step) {
  SFT_ASSIGN_OR_RETURN(Statement get, db.Prepare("SELECT " SFT_CHECKPOINT_COLUMNS
                                                 " FROM checkpoints WHERE attempt_uid = ? AND "
                                                 "step = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(attempt_uid).Bind(step).Step());
  if (!row) return NotFound(fmt::format("no checkpoint of step {}", step));
  return ReadCheckpoint(get);
}

absl::Status InsertCheckpoint(Database& db, const CheckpointRecord& checkpoint) {
  SFT_ASSIGN_OR_RETURN(
      Statement put,
      db.Prepare("INSERT INTO checkpoints (attempt_uid, step, job_id, attempt, epoch, reason, "
                 "metric, best, created_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON "
                 "CONFLICT DO NOTHING"));
  put.Bind(checkpoint.attempt_uid).Bind(checkpoint.step).Bind(checkpoint.job_id);
  put.Bind(checkpoint.attempt).Bind(checkpoint.epoch).Bind(checkpoint.reason);
  if (checkpoint.metric.has_value()) {
    put.Bind(*checkpoint.metric);
  } else {
    put.BindNull();
  }
  return put.Bind(checkpoint.best).Bind(checkpoint.created_us).Run();
}

absl::Status InsertPart(Database& db, const CheckpointRecord& checkpoint,
                        const CheckpointPart& part, const std::vector<ArtifactFileRecord>& files) {
  {
    SFT_ASSIGN_OR_RETURN(
        Statement put,
        db.Prepare("INSERT INTO checkpoint_parts (attempt_uid, step, node_rank, node, place, path, "
                   "bytes) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"));
    put.Bind(checkpoint.attempt_uid).Bind(checkpoint.step).Bind(part.node_rank).Bind(part.node);
    put.Bind(static_cast<int>(part.place)).Bind(part.path).Bind(part.bytes);
    SFT_RETURN_IF_ERROR(put.Run());
  }
  for (const ArtifactFileRecord& file : files) {
    SFT_ASSIGN_OR_RETURN(
        Statement put,
        db.Prepare("INSERT INTO checkpoint_files (attempt_uid, step, path, sha256, size) VALUES "
                   "(?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"));
    put.Bind(checkpoint.attempt_uid).Bind(checkpoint.step).Bind(file.path).Bind(file.sha256);
    SFT_RETURN_IF_ERROR(put.Bind(file.size).Run());
  }
  return absl::OkStatus();
}

absl::Status ReadParts(Database& db, CheckpointRecord& checkpoint) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT node_rank, node, place, path, bytes FROM "
                                  "checkpoint_parts WHERE attempt_uid = ? AND step = ? ORDER BY "
                                  "node_rank"));
  list.Bind(checkpoint.attempt_uid).Bind(checkpoint.step);
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return absl::OkStatus();
    checkpoint.parts.push_back({static_cast<int>(list.Int(0)), list.Text(1),
                                static_cast<CheckpointPlace>(list.Int(2)), list.Text(3),
                                list.Int(4)});
  }
}

absl::StatusOr<std::vector<KeptStep>> ReadKept(Statement& list) {
  std::vector<KeptStep> kept;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return kept;
    kept.push_back({list.Text(0), list.Int(1), list.Bool(2)});
  }
}

absl::StatusOr<std::vector<std::string>> ReadTexts(Statement& list) {
  std::vector<std::string> texts;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return texts;
    texts.push_back(list.Text(0));
  }
}

}  // namespace

absl::StatusOr<CheckpointRecord> PutCheckpointPart(Database& db, const CheckpointRecord& checkpoint,
                                                   const CheckpointPart& part,
                                                   const std::vector<ArtifactFileRecord>& files,
                                                   int parts_needed) {
  SFT_RETURN_IF_ERROR(InsertCheckpoint(db, checkpoint));
  SFT_ASSIGN_OR_RETURN(const CheckpointRecord row,
                       GetCheckpoint(db, checkpoint.attempt_uid, checkpoint.step));
  if (row.committed_us > 0 || row.deleted_us > 0) return row;
  SFT_RETURN_IF_ERROR(InsertPart(db, checkpoint, part, files));
  {
    SFT_ASSIGN_OR_RETURN(
        Statement update,
        db.Prepare(
            "UPDATE checkpoints SET bytes = (SELECT sum(bytes) FROM checkpoint_parts p WHERE "
            "p.attempt_uid = checkpoints.attempt_uid AND p.step = checkpoints.step), best = max("
            "best, ?), committed_us = CASE WHEN (SELECT count(*) FROM checkpoint_parts p WHERE "
            "p.attempt_uid = checkpoints.attempt_uid AND p.step = checkpoints.step) >= ? THEN ? "
            "ELSE 0 END WHERE attempt_uid = ? AND step = ?"));
    update.Bind(checkpoint.best).Bind(parts_needed).Bind(checkpoint.created_us);
    SFT_RETURN_IF_ERROR(update.Bind(checkpoint.attempt_uid).Bind(checkpoint.step).Run());
  }
  return GetCheckpoint(db, checkpoint.attempt_uid, checkpoint.step);
}

absl::StatusOr<std::vector<CheckpointRecord>> CheckpointsOfJob(Database& db,
                                                               const std::string& job_id) {
  std::vector<CheckpointRecord> checkpoints;
  {
    SFT_ASSIGN_OR_RETURN(Statement list,
                         db.Prepare("SELECT " SFT_CHECKPOINT_COLUMNS
                                    " FROM checkpoints WHERE job_id = ? AND deleted_us = 0 ORDER "
                                    "BY step DESC, attempt DESC LIMIT 1000"));
    list.Bind(job_id);
    while (true) {
      SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
      if (!row) break;
      checkpoints.push_back(ReadCheckpoint(list));
    }
  }
  for (CheckpointRecord& checkpoint : checkpoints) {
    SFT_RETURN_IF_ERROR(ReadParts(db, checkpoint));
  }
  return checkpoints;
}

absl::StatusOr<int64_t> NewestStep(Database& db, const std::string& job_id) {
  SFT_ASSIGN_OR_RETURN(Statement get,
                       db.Prepare("SELECT coalesce(max(step), 0) FROM checkpoints WHERE job_id = ? "
                                  "AND committed_us > 0"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(job_id).Step());
  return row ? get.Int(0) : 0;
}

absl::StatusOr<int64_t> NewestStepOf(Database& db, const std::string& attempt_uid) {
  SFT_ASSIGN_OR_RETURN(Statement get,
                       db.Prepare("SELECT coalesce(max(step), 0) FROM checkpoints WHERE "
                                  "attempt_uid = ? AND committed_us > 0"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(attempt_uid).Step());
  return row ? get.Int(0) : 0;
}

absl::StatusOr<int64_t> CountAsked(Database& db, const std::string& attempt_uid) {
  SFT_ASSIGN_OR_RETURN(Statement get, db.Prepare("SELECT count(*) FROM checkpoints WHERE "
                                                 "attempt_uid = ? AND committed_us > 0 AND "
                                                 "reason IN ('asked', 'stopping')"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(attempt_uid).Step());
  return row ? get.Int(0) : 0;
}

absl::StatusOr<int64_t> NewestCommit(Database& db, const std::string& job_id) {
  SFT_ASSIGN_OR_RETURN(Statement get,
                       db.Prepare("SELECT coalesce(max(committed_us), 0) FROM checkpoints WHERE "
                                  "job_id = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(job_id).Step());
  return row ? get.Int(0) : 0;
}

absl::StatusOr<std::vector<ArtifactFileRecord>> FilesOfCheckpoint(Database& db,
                                                                  const std::string& attempt_uid,
                                                                  int64_t step) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT path, sha256, size FROM checkpoint_files WHERE "
                                  "attempt_uid = ? AND step = ? ORDER BY path"));
  list.Bind(attempt_uid).Bind(step);
  std::vector<ArtifactFileRecord> files;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return files;
    files.push_back({list.Text(0), list.Text(1), list.Int(2)});
  }
}

absl::Status SetCheckpointProblem(Database& db, const std::string& attempt_uid, int64_t step,
                                  const std::string& problem) {
  SFT_ASSIGN_OR_RETURN(
      Statement update,
      db.Prepare("UPDATE checkpoints SET problem = ? WHERE attempt_uid = ? AND step = ?"));
  return update.Bind(problem).Bind(attempt_uid).Bind(step).Run();
}

absl::Status SetProblemOfBlob(Database& db, const std::string& sha256, const std::string& problem) {
  SFT_ASSIGN_OR_RETURN(
      Statement update,
      db.Prepare("UPDATE checkpoints SET problem = ? WHERE problem = '' AND EXISTS (SELECT 1 FROM "
                 "checkpoint_files f WHERE f.attempt_uid = checkpoints.attempt_uid AND f.step = "
                 "checkpoints.step AND f.sha256 = ?)"));
  return update.Bind(problem).Bind(sha256).Run();
}

absl::StatusOr<bool> CheckpointBlobInUse(Database& db, const std::string& sha256) {
  SFT_ASSIGN_OR_RETURN(Statement find,
                       db.Prepare("SELECT 1 FROM checkpoint_files WHERE sha256 = ? LIMIT 1"));
  return find.Bind(sha256).Step();
}

absl::StatusOr<std::vector<std::string>> DeleteCheckpoint(Database& db,
                                                          const std::string& attempt_uid,
                                                          int64_t step, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(const std::vector<ArtifactFileRecord> files,
                       FilesOfCheckpoint(db, attempt_uid, step));
  {
    SFT_ASSIGN_OR_RETURN(Statement update,
                         db.Prepare("UPDATE checkpoints SET deleted_us = ? WHERE attempt_uid = ? "
                                    "AND step = ? AND deleted_us = 0"));
    SFT_RETURN_IF_ERROR(update.Bind(now_us).Bind(attempt_uid).Bind(step).Run());
  }
  {
    SFT_ASSIGN_OR_RETURN(
        Statement remove,
        db.Prepare("DELETE FROM checkpoint_files WHERE attempt_uid = ? AND step = ?"));
    SFT_RETURN_IF_ERROR(remove.Bind(attempt_uid).Bind(step).Run());
  }
  std::vector<std::string> unused;
  for (const ArtifactFileRecord& file : files) {
    SFT_ASSIGN_OR_RETURN(const bool used, CheckpointBlobInUse(db, file.sha256));
    if (!used) unused.push_back(file.sha256);
  }
  return unused;
}

absl::StatusOr<std::vector<KeptStep>> KeptOnNode(Database& db, const std::string& node) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare(
          "SELECT DISTINCT c.job_id, c.step, 0 FROM checkpoints c JOIN checkpoint_parts p ON "
          "p.attempt_uid = c.attempt_uid AND p.step = c.step WHERE c.deleted_us = 0 AND "
          "p.node = ? AND p.place " SFT_NOT_IN_SHARED " AND " SFT_MAY_BE_RESUMED
          " ORDER BY c.job_id, c.step"));
  return ReadKept(list.Bind(node));
}

absl::StatusOr<std::vector<KeptStep>> KeptInShared(Database& db, int64_t since_us) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT DISTINCT c.job_id, CASE WHEN c.deleted_us = 0 AND " SFT_MAY_BE_RESUMED
                 " THEN c.step ELSE 0 END AS kept, j.state " SFT_HAS_ENDED
                 " FROM checkpoints c JOIN "
                 "checkpoint_parts p ON p.attempt_uid = c.attempt_uid AND p.step = c.step JOIN "
                 "jobs j ON j.id = c.job_id WHERE (c.deleted_us = 0 OR c.deleted_us > ?) AND "
                 "p.place " SFT_IN_SHARED " AND (kept > 0 OR j.state " SFT_HAS_ENDED
                 ") ORDER BY c.job_id, kept"));
  return ReadKept(list.Bind(since_us));
}

absl::StatusOr<std::vector<std::string>> JobsWithCheckpoints(Database& db) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT DISTINCT job_id FROM checkpoints WHERE deleted_us = 0 LIMIT 1000"));
  return ReadTexts(list);
}

absl::StatusOr<std::vector<std::string>> EndedJobsWithCheckpoints(Database& db,
                                                                  int64_t succeeded_before_us,
                                                                  int64_t ended_before_us,
                                                                  int limit) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT DISTINCT j.id FROM checkpoints c JOIN jobs j ON j.id = c.job_id WHERE "
                 "c.deleted_us = 0 AND ((j.state " SFT_IS_SUCCEEDED
                 " AND j.ended_us < ?) OR (j.state " SFT_IS_FAILED_OR_CANCELLED " AND "
                 "j.ended_us < ?)) LIMIT ?"));
  return ReadTexts(list.Bind(succeeded_before_us).Bind(ended_before_us).Bind(limit));
}

absl::StatusOr<bool> IsResumedByLiveJob(Database& db, const std::string& job_id) {
  SFT_ASSIGN_OR_RETURN(
      Statement find,
      db.Prepare("SELECT 1 FROM jobs j WHERE j.resumed_from = ? AND j.resumed_from != '' AND "
                 "j.state " SFT_IS_LIVE
                 " AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.job_id = j.id "
                 "AND c.committed_us > 0) LIMIT 1"));
  return find.Bind(job_id).Step();
}

absl::Status AddNodeFault(Database& db, const NodeFault& fault) {
  SFT_ASSIGN_OR_RETURN(
      Statement insert,
      db.Prepare("INSERT INTO node_faults (node, time_us, job_id, code) VALUES (?, ?, ?, ?)"));
  insert.Bind(fault.node).Bind(fault.time_us).Bind(fault.job_id).Bind(fault.code);
  return insert.Run();
}

absl::StatusOr<std::vector<NodeFault>> NodeFaults(Database& db, int64_t since_us) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare(
          "SELECT f.node, f.time_us, f.job_id, f.code, a.ended_us - a.created_us, a.progress "
          "FROM node_faults f LEFT JOIN attempts a ON a.job_id = f.job_id AND a.ended_us = "
          "f.time_us WHERE f.time_us > ? ORDER BY f.node, f.time_us LIMIT 10000"));
  list.Bind(since_us);
  std::vector<NodeFault> faults;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return faults;
    NodeFault& fault =
        faults.emplace_back(NodeFault{list.Text(0), list.Int(1), list.Text(2), list.Text(3)});
    if (list.IsNull(4)) continue;
    fault.lived_us = list.Int(4);
    fault.step = ParseProgress(list.Text(5)).step;
  }
}

absl::Status DropNodeFaults(Database& db, int64_t before_us) {
  SFT_ASSIGN_OR_RETURN(Statement remove, db.Prepare("DELETE FROM node_faults WHERE time_us < ?"));
  return remove.Bind(before_us).Run();
}

}  // namespace sft::server::store
