#include "server/stored/checkpoints.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <set>

#include "common/base/bytes.h"
#include "server/core/convert.h"
#include "server/gangs/node_checks.h"
#include "server/resume/resume.h"
#include "server/state/names.h"
#include "server/store/attempts.h"
#include "server/store/checkpoints.h"
#include "server/store/jobs.h"
#include "server/store/webhook_events.h"
#include "server/stored/uploads.h"

namespace sft::server {
namespace {

constexpr int kSweptJobs = 100;
// Longer than any failure has weight (sched/node_score.h).
constexpr std::chrono::hours kRememberFaults{48};

// Returns the attempt if it may still commit: it is the job's newest and alive, and the calling
// node has not been given up.
absl::StatusOr<AttemptRecord> CheckFence(Database& db, const v1::CommitCheckpointRequest& request,
                                         CheckpointPart& part, int& parts_needed) {
  SFT_ASSIGN_OR_RETURN(const AttemptRecord attempt, store::GetAttempt(db, request.attempt_uid()));
  SFT_ASSIGN_OR_RETURN(const JobRecord job, store::GetJob(db, attempt.job_id));
  if (attempt.epoch != request.epoch() || attempt.number != job.attempt ||
      IsTerminal(attempt.state)) {
    return FailedPrecondition(fmt::format(
        "attempt {} is over, or epoch {} is not its own: its checkpoint of step {} is refused",
        attempt.uid, request.epoch(), request.step()));
  }
  SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members, store::MembersOf(db, attempt.uid));
  SFT_ASSIGN_OR_RETURN(const Dispatched dispatched, DispatchedTo(request.node(), attempt, members));
  SFT_RETURN_IF_ERROR(CheckCheckpoint(request, dispatched));
  parts_needed = static_cast<int>(members.size());
  for (const MemberRecord& member : members) {
    if (member.status.node != request.node() || member.status.lost) continue;
    part.node_rank = member.status.node_rank;
    part.node = member.status.node;
    return attempt;
  }
  return FailedPrecondition(
      fmt::format("attempt {} is not on node {}", attempt.uid, request.node()));
}

std::string PlaceText(const CheckpointRecord& checkpoint) {
  std::string nodes;
  for (const CheckpointPart& part : checkpoint.parts) {
    if (part.place == CheckpointPlace::kShared) return "shared folder";
    if (part.place == CheckpointPlace::kNode) nodes += (nodes.empty() ? "" : ", ") + part.node;
  }
  return nodes.empty() ? "server" : nodes;
}

v1::Checkpoint ToProto(const CheckpointRecord& checkpoint) {
  v1::Checkpoint proto;
  proto.set_step(checkpoint.step);
  proto.set_attempt(checkpoint.attempt);
  proto.set_bytes(checkpoint.bytes);
  proto.set_reason(checkpoint.reason);
  if (checkpoint.metric.has_value()) proto.set_metric(*checkpoint.metric);
  proto.set_best(checkpoint.best);
  *proto.mutable_commit_time() = ToTimestamp(checkpoint.committed_us);
  proto.set_place(PlaceText(checkpoint));
  proto.set_problem(checkpoint.problem);
  return proto;
}

std::string EventText(const CheckpointRecord& checkpoint) {
  return fmt::format("step {} committed ({}, {}{})", checkpoint.step, checkpoint.reason,
                     BytesText(checkpoint.bytes), checkpoint.best ? ", the best so far" : "");
}

// Drops everything that a long-ended job has left, unless another continues from it.
absl::Status DropAll(Database& db, const std::string& job, int64_t now_us,
                     std::vector<std::string>& blobs) {
  blobs.clear();
  SFT_ASSIGN_OR_RETURN(const bool resumed, store::IsResumedByLiveJob(db, job));
  if (resumed) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const auto checkpoints, store::CheckpointsOfJob(db, job));
  for (const CheckpointRecord& each : checkpoints) {
    SFT_ASSIGN_OR_RETURN(const auto unused,
                         store::DeleteCheckpoint(db, each.attempt_uid, each.step, now_us));
    blobs.insert(blobs.end(), unused.begin(), unused.end());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::CommitCheckpointResponse> Checkpoints::Commit(
    const v1::CommitCheckpointRequest& request) {
  const MutexLock lock(mutex_);
  CheckpointPart part;
  int parts_needed = 0;
  SFT_RETURN_IF_ERROR(store_.Read(
      [&](Database& db) { return CheckFence(db, request, part, parts_needed).status(); }));
  SFT_RETURN_IF_ERROR(
      CheckDelivered(blobs_, request.files(), request.node(), request.attempt_uid()));
  part.bytes = request.bytes();
  part.place = request.files_size() > 0         ? CheckpointPlace::kServer
               : !request.shared_path().empty() ? CheckpointPlace::kShared
                                                : CheckpointPlace::kNode;
  part.path = request.shared_path().empty() ? request.node_path() : request.shared_path();
  std::vector<ArtifactFileRecord> files;
  for (const v1::ArtifactFile& file : request.files()) {
    files.push_back({file.path(), file.blob().sha256(), file.blob().size()});
  }
  CheckpointRecord checkpoint;
  std::vector<std::string> unused;
  SFT_RETURN_IF_ERROR(store_.Write([&](Database& db) -> absl::Status {
    unused.clear();
    SFT_ASSIGN_OR_RETURN(const AttemptRecord attempt, CheckFence(db, request, part, parts_needed));
    checkpoint = {};
    checkpoint.attempt_uid = attempt.uid;
    checkpoint.step = request.step();
    checkpoint.job_id = attempt.job_id;
    checkpoint.attempt = attempt.number;
    checkpoint.epoch = attempt.epoch;
    checkpoint.reason = request.reason();
    if (request.has_metric()) checkpoint.metric = request.metric();
    checkpoint.best = request.best();
    checkpoint.created_us = UnixMicros(clock_.Wall());
    const int64_t now_us = checkpoint.created_us;
    SFT_ASSIGN_OR_RETURN(checkpoint,
                         store::PutCheckpointPart(db, checkpoint, part, files, parts_needed));
    // For a repeated call everything is done already.
    if (checkpoint.committed_us != now_us) return absl::OkStatus();
    SFT_RETURN_IF_ERROR(store::AddEvent(
        db, attempt.job_id, {0, now_us, "checkpoint", EventText(checkpoint), attempt.number}));
    SFT_RETURN_IF_ERROR(store::TellCheckpoint(db, checkpoint, now_us));
    SFT_ASSIGN_OR_RETURN(unused, TrimCheckpoints(db, attempt.job_id, now_us));
    return absl::OkStatus();
  }));
  SFT_RETURN_IF_ERROR(RemoveBlobs(unused));
  if (const absl::Status forgot = ForgetOvertaken(request); !forgot.ok()) {
    spdlog::warn("files of overtaken checkpoints of attempt {}: {}", request.attempt_uid(),
                 Message(forgot));
  }
  hub_.Bump(checkpoint.job_id);
  wake_();
  v1::CommitCheckpointResponse response;
  response.set_committed(checkpoint.committed_us > 0);
  return response;
}

absl::StatusOr<v1::CheckpointJobResponse> Checkpoints::Ask(const v1::CheckpointJobRequest& request,
                                                           const Actor& actor) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(request.name()));
  v1::CheckpointJobResponse response;
  const int64_t now_us = UnixMicros(clock_.Wall());
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_ASSIGN_OR_RETURN(JobRecord job, store::FindJob(db, ref));
        SFT_RETURN_IF_ERROR(store::ReadTexts(db, job));
        if (job.state != JobState::kRunning) {
          return FailedPrecondition(fmt::format(
              "job {} is {}: only a running job writes checkpoints{}", job.id, ToString(job.state),
              IsTerminal(job.state) ? "; `sftctl checkpoints JOB` lists what there is" : ""));
        }
        if (job.kind != v1::Job::SFT) {
          return FailedPrecondition(
              fmt::format("job {} answers prompts: it writes no checkpoints, and goes on behind "
                          "its last answer",
                          job.id));
        }
        SFT_ASSIGN_OR_RETURN(auto attempt, store::AttemptOfJob(db, job.id, job.attempt));
        if (!attempt.has_value()) return Internal(fmt::format("job {} has no attempt", job.id));
        if (request.request_id().empty() || attempt->checkpoint_request != request.request_id()) {
          ++attempt->checkpoints_asked;
          attempt->checkpoint_request = request.request_id();
          SFT_RETURN_IF_ERROR(store::AskForCheckpoint(db, *attempt));
          SFT_RETURN_IF_ERROR(store::AddEvent(
              db, job.id, {0, now_us, "checkpoint", "one was asked for", attempt->number}));
        }
        response.set_step(attempt->progress.step);
        SFT_ASSIGN_OR_RETURN(std::string spec_text, store::ReadSpecText(db, job));
        *response.mutable_job() = server::ToProto(job, std::move(spec_text));
        return absl::OkStatus();
      },
      actor.audit));
  *response.mutable_time() = ToTimestamp(now_us);
  hub_.Bump(ref.id);
  wake_();
  return response;
}

absl::StatusOr<v1::ListCheckpointsResponse> Checkpoints::List(const std::string& name) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
  v1::ListCheckpointsResponse response;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_RETURN_IF_ERROR(store::FindJob(db, ref).status());
    SFT_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> checkpoints,
                         store::CheckpointsOfJob(db, ref.id));
    for (const CheckpointRecord& checkpoint : checkpoints) {
      if (checkpoint.committed_us > 0) *response.add_checkpoints() = ToProto(checkpoint);
    }
    return absl::OkStatus();
  }));
  return response;
}

absl::StatusOr<Checkpoints::Dropped> Checkpoints::DropJob(const std::string& job_id, bool dry_run,
                                                          AuditRow* audit) {
  const MutexLock lock(mutex_);
  Dropped dropped;
  std::vector<std::string> unused;
  const int64_t now_us = UnixMicros(clock_.Wall());
  const absl::Status done = store_.Write(
      [&](Database& db) -> absl::Status {
        dropped = {};
        SFT_ASSIGN_OR_RETURN(dropped.in_use, store::IsResumedByLiveJob(db, job_id));
        if (dropped.in_use) return absl::OkStatus();
        SFT_ASSIGN_OR_RETURN(const auto checkpoints, store::CheckpointsOfJob(db, job_id));
        for (const CheckpointRecord& each : checkpoints) {
          ++dropped.count;
          for (const CheckpointPart& part : each.parts) {
            dropped.elsewhere = dropped.elsewhere || part.place != CheckpointPlace::kServer;
          }
        }
        SFT_RETURN_IF_ERROR(DropAll(db, job_id, now_us, unused));
        // Rolls back the transaction.
        return dry_run ? absl::CancelledError("a dry run") : absl::OkStatus();
      },
      audit);
  if (!dry_run || !absl::IsCancelled(done)) SFT_RETURN_IF_ERROR(done);
  for (const std::string& hash : std::set<std::string>(unused.begin(), unused.end())) {
    SFT_ASSIGN_OR_RETURN(const BlobStore::Stat stat, blobs_.Find(hash));
    dropped.bytes += stat.size;
  }
  if (!dry_run) SFT_RETURN_IF_ERROR(RemoveBlobs(unused));
  return dropped;
}

absl::Status Checkpoints::ForgetOvertaken(const v1::CommitCheckpointRequest& request) {
  Sender sender;
  sender.node = request.node();
  sender.attempt_uid = request.attempt_uid();
  SFT_ASSIGN_OR_RETURN(const std::string key, sender.KeyOf(v1::UploadBlobRequest::CHECKPOINT));
  SFT_ASSIGN_OR_RETURN(const auto held, blobs_.Held(key));
  std::vector<std::string> overtaken;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    overtaken.clear();
    for (const auto& [sha256, bytes] : held) {
      SFT_ASSIGN_OR_RETURN(const bool used, store::CheckpointBlobInUse(db, sha256));
      if (!used) overtaken.push_back(sha256);
    }
    return absl::OkStatus();
  }));
  for (const std::string& sha256 : overtaken) {
    SFT_RETURN_IF_ERROR(blobs_.Forget(sha256, key));
  }
  return absl::OkStatus();
}

absl::Status Checkpoints::RemoveBlobs(const std::vector<std::string>& hashes) {
  for (const std::string& hash : hashes) SFT_RETURN_IF_ERROR(blobs_.Remove(hash));
  return absl::OkStatus();
}

absl::Status Checkpoints::SweepRows(std::vector<std::string>& unused) {
  const int64_t now_us = UnixMicros(clock_.Wall());
  const auto before = [&](std::chrono::hours keep) {
    return now_us - std::chrono::duration_cast<std::chrono::microseconds>(keep).count();
  };
  std::vector<std::string> jobs, ended;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(jobs, store::JobsWithCheckpoints(db));
    SFT_ASSIGN_OR_RETURN(ended, store::EndedJobsWithCheckpoints(db, before(kKeepSucceeded),
                                                                before(kKeepFailed), kSweptJobs));
    return absl::OkStatus();
  }));
  // One transaction each, so that none holds the store for long.
  for (const std::string& job : jobs) {
    std::vector<std::string> blobs;
    SFT_RETURN_IF_ERROR(store_.Write([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(blobs, TrimCheckpoints(db, job, now_us));
      return absl::OkStatus();
    }));
    unused.insert(unused.end(), blobs.begin(), blobs.end());
  }
  for (const std::string& job : ended) {
    std::vector<std::string> blobs;
    SFT_RETURN_IF_ERROR(
        store_.Write([&](Database& db) { return DropAll(db, job, now_us, blobs); }));
    unused.insert(unused.end(), blobs.begin(), blobs.end());
  }
  return store_.Write(
      [&](Database& db) { return store::DropNodeFaults(db, before(kRememberFaults)); });
}

absl::Status Checkpoints::SweepBlobs() {
  const auto limit = clock_.Wall() - kKeepUploads;
  SFT_ASSIGN_OR_RETURN(const BlobStore::Old old, blobs_.OlderThan(UnixMicros(limit) / 1'000'000));
  std::vector<std::string> unused;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    unused.clear();
    for (const std::string& hash : old.blobs) {
      SFT_ASSIGN_OR_RETURN(const bool used, store::CheckpointBlobInUse(db, hash));
      if (!used) unused.push_back(hash);
    }
    return absl::OkStatus();
  }));
  SFT_RETURN_IF_ERROR(RemoveBlobs(unused));
  for (const std::string& file : old.uploads) SFT_RETURN_IF_ERROR(blobs_.DropUpload(file));
  return absl::OkStatus();
}

absl::Status Checkpoints::Sweep() {
  const MutexLock lock(mutex_);
  std::vector<std::string> unused;
  SFT_RETURN_IF_ERROR(SweepRows(unused));
  SFT_RETURN_IF_ERROR(RemoveBlobs(unused));
  return SweepBlobs();
}

}  // namespace sft::server
