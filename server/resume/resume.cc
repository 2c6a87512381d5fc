#include "server/resume/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>

#include "server/state/names.h"
#include "server/store/attempts.h"
#include "server/store/checkpoints.h"
#include "server/store/jobs.h"
#include "server/store/resumed_steps.h"

namespace sft::server {
namespace {

bool IsCommitted(const CheckpointRecord& checkpoint) { return checkpoint.committed_us > 0; }

// The step that a live attempt of the job began from: its ranks may still read it.
absl::StatusOr<std::vector<int64_t>> StepsInUse(Database& db, const JobRecord& job) {
  std::vector<int64_t> steps;
  if (job.state == JobState::kPending || IsTerminal(job.state)) return steps;
  SFT_ASSIGN_OR_RETURN(const auto attempt, store::AttemptOfJob(db, job.id, job.attempt));
  if (attempt.has_value() && attempt->resume_step > 0) steps.push_back(attempt->resume_step);
  return steps;
}

// The attempt that says where the job is: the newest that goes on from a checkpoint of the job or
// has committed one; empty: there is none.
absl::StatusOr<std::string> HeadOf(Database& db, const JobRecord& job,
                                   const std::vector<CheckpointRecord>& checkpoints) {
  const CheckpointRecord* newest = nullptr;
  for (const CheckpointRecord& each : checkpoints) {
    if (IsCommitted(each) && (newest == nullptr || each.attempt > newest->attempt)) newest = &each;
  }
  SFT_ASSIGN_OR_RETURN(const auto attempt, store::AttemptOfJob(db, job.id, job.attempt));
  if (attempt.has_value() && !attempt->resume_uid.empty()) return attempt->uid;
  return newest == nullptr ? "" : newest->attempt_uid;
}

// The attempts that led to where the job is, newest first, as far back as there are checkpoints.
absl::StatusOr<std::vector<BranchPart>> BranchOf(Database& db, const JobRecord& job,
                                                 const std::vector<CheckpointRecord>& checkpoints) {
  std::vector<BranchPart> branch;
  int oldest = std::numeric_limits<int>::max();
  for (const CheckpointRecord& each : checkpoints) oldest = std::min(oldest, each.attempt);
  int64_t up_to = std::numeric_limits<int64_t>::max();
  SFT_ASSIGN_OR_RETURN(std::string uid, HeadOf(db, job, checkpoints));
  while (!uid.empty()) {
    SFT_ASSIGN_OR_RETURN(const AttemptRecord attempt, store::GetAttempt(db, uid));
    if (attempt.job_id != job.id || attempt.number < oldest) break;
    branch.push_back({uid, up_to});
    uid = attempt.resume_uid;
    up_to = attempt.resume_step;
  }
  return branch;
}

}  // namespace

absl::StatusOr<std::vector<CheckpointRecord>> ResumeCandidates(Database& db, const JobRecord& job) {
  SFT_ASSIGN_OR_RETURN(std::vector<CheckpointRecord> own, store::CheckpointsOfJob(db, job.id));
  std::erase_if(own, [](const auto& checkpoint) { return !IsCommitted(checkpoint); });
  if (job.resumed_from.empty()) return own;
  // Behind its own: what it came from may be whole where these are not.
  SFT_ASSIGN_OR_RETURN(const JobRecord from, store::GetJob(db, job.resumed_from));
  SFT_ASSIGN_OR_RETURN(std::vector<CheckpointRecord> origin, ResumeCandidates(db, from));
  std::erase_if(origin, [&](const auto& checkpoint) {
    return job.resumed_step > 0 && checkpoint.step != job.resumed_step;
  });
  own.insert(own.end(), std::make_move_iterator(origin.begin()),
             std::make_move_iterator(origin.end()));
  return own;
}

absl::Status CheckResumable(const JobRecord& job, const std::vector<CheckpointRecord>& checkpoints,
                            int64_t step) {
  if (job.kind != v1::Job::SFT) {
    return FailedPrecondition(
        fmt::format("job {} trains nothing, it has no checkpoints: submit it again", job.id));
  }
  if (!IsTerminal(job.state)) {
    return FailedPrecondition(fmt::format("job {} is {}: only a job that has ended is resumed",
                                          job.id, ToString(job.state)));
  }
  if (job.state == JobState::kSucceeded) {
    return FailedPrecondition(
        fmt::format("job {} succeeded: there is nothing left to do; `sftctl download {}` gets its "
                    "result",
                    job.id, job.id));
  }
  std::string steps, damage;
  for (const CheckpointRecord& each : checkpoints) {
    if (!each.problem.empty()) {
      if (step == 0 || each.step == step) damage = each.problem;
      continue;
    }
    if (each.step == step) return absl::OkStatus();
    steps += fmt::format("{}{}", steps.empty() ? "" : ", ", each.step);
  }
  if (checkpoints.empty()) {
    return FailedPrecondition(
        fmt::format("job {} has no checkpoint to go on from: submit it again", job.id));
  }
  if (steps.empty() && step == 0) {
    return FailedPrecondition(
        fmt::format("no checkpoint of job {} can be used ({}): submit it again", job.id, damage));
  }
  if (step == 0) return absl::OkStatus();
  const std::string others = steps.empty() ? "no other: submit it again" : steps;
  if (!damage.empty()) {
    return FailedPrecondition(
        fmt::format("the checkpoint of step {} of job {} cannot be used: {}; there is: {}", step,
                    job.id, damage, others));
  }
  return NotFound(
      fmt::format("job {} has no checkpoint of step {}; there is: {}", job.id, step, others));
}

absl::Status FillResume(Database& db, const JobRecord& job, const AttemptRecord& attempt,
                        const std::string& node, v1::Dispatch& dispatch) {
  if (attempt.resume_uid.empty()) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const AttemptRecord writer, store::GetAttempt(db, attempt.resume_uid));
  SFT_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> all,
                       store::CheckpointsOfJob(db, writer.job_id));
  v1::Resume& resume = *dispatch.mutable_resume();
  resume.set_step(attempt.resume_step);
  const bool own = writer.job_id == job.id;
  resume.set_changed_ok(job.resume_changed || own);
  resume.set_engine_alone(own && !job.resume_changed);
  for (const CheckpointRecord& checkpoint : all) {
    if (checkpoint.attempt_uid != attempt.resume_uid || checkpoint.step != attempt.resume_step) {
      continue;
    }
    for (const CheckpointPart& part : checkpoint.parts) {
      if (part.place == CheckpointPlace::kShared) resume.set_shared_path(part.path);
      if (part.place == CheckpointPlace::kNode && part.node == node) {
        resume.set_node_path(part.path);
      }
    }
  }
  SFT_ASSIGN_OR_RETURN(const std::vector<ArtifactFileRecord> files,
                       store::FilesOfCheckpoint(db, attempt.resume_uid, attempt.resume_step));
  for (const ArtifactFileRecord& file : files) {
    v1::ArtifactFile& added = *resume.add_files();
    added.set_path(file.path);
    added.mutable_blob()->set_sha256(file.sha256);
    added.mutable_blob()->set_size(file.size);
  }
  return absl::OkStatus();
}

std::vector<CheckpointRecord> BranchFirst(std::vector<CheckpointRecord> checkpoints,
                                          const std::vector<BranchPart>& branch) {
  std::stable_partition(
      checkpoints.begin(), checkpoints.end(), [&](const CheckpointRecord& checkpoint) {
        return std::any_of(branch.begin(), branch.end(), [&](const BranchPart& part) {
          return part.attempt_uid == checkpoint.attempt_uid && checkpoint.step <= part.up_to;
        });
      });
  return checkpoints;
}

std::vector<CheckpointRecord> SupersededCheckpoints(
    const std::vector<CheckpointRecord>& checkpoints, int save_total_limit,
    const std::string& live_uid, const std::vector<int64_t>& protected_steps) {
  std::vector<CheckpointRecord> superseded;
  int kept = 0;
  bool has_best = false;
  // Of the live attempt: it delivers them in the order of their steps.
  int64_t newest_committed = 0;
  std::set<int64_t> steps;
  for (const CheckpointRecord& checkpoint : checkpoints) {
    if (!IsCommitted(checkpoint)) {
      const bool may_come = checkpoint.attempt_uid == live_uid && newest_committed == 0;
      if (!may_come) superseded.push_back(checkpoint);
      continue;
    }
    if (checkpoint.attempt_uid == live_uid) {
      newest_committed = std::max(newest_committed, checkpoint.step);
    }
    const bool repeated = !steps.insert(checkpoint.step).second;  // another attempt's of that step
    const bool is_best = checkpoint.best && !has_best;
    const bool in_use = std::find(protected_steps.begin(), protected_steps.end(),
                                  checkpoint.step) != protected_steps.end();
    const bool counts = !repeated && checkpoint.problem.empty();
    const bool within = save_total_limit <= 0 || kept < save_total_limit;
    if (counts && within) {
      ++kept;
    } else if (!(is_best && counts) && !in_use) {
      superseded.push_back(checkpoint);
      continue;
    }
    has_best = has_best || is_best;
  }
  return superseded;
}

absl::StatusOr<std::vector<std::string>> TrimCheckpoints(Database& db, const std::string& job_id,
                                                         int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(const JobRecord job, store::GetJob(db, job_id));
  SFT_ASSIGN_OR_RETURN(std::vector<CheckpointRecord> checkpoints,
                       store::CheckpointsOfJob(db, job_id));
  SFT_ASSIGN_OR_RETURN(const std::vector<BranchPart> branch, BranchOf(db, job, checkpoints));
  checkpoints = BranchFirst(std::move(checkpoints), branch);
  SFT_ASSIGN_OR_RETURN(std::vector<int64_t> in_use, StepsInUse(db, job));
  std::vector<std::string> unused;
  SFT_ASSIGN_OR_RETURN(const auto resumed, store::StepsResumedByLiveJobs(db, job_id));
  // All of it stays for a job that is about to go on from any of them.
  if (std::find(resumed.begin(), resumed.end(), 0) != resumed.end()) return unused;
  in_use.insert(in_use.end(), resumed.begin(), resumed.end());
  std::string live_uid;
  SFT_ASSIGN_OR_RETURN(const auto attempt, store::AttemptOfJob(db, job.id, job.attempt));
  if (attempt.has_value() && !IsTerminal(attempt->state)) live_uid = attempt->uid;
  const absl::StatusOr<spec::JobSpec> spec = store::ReadSpec(db, job);
  if (absl::IsDataLoss(spec.status())) return unused;
  SFT_RETURN_IF_ERROR(spec.status());
  for (const CheckpointRecord& checkpoint :
       SupersededCheckpoints(checkpoints, spec->checkpoint.save_total_limit, live_uid, in_use)) {
    SFT_ASSIGN_OR_RETURN(
        const std::vector<std::string> blobs,
        store::DeleteCheckpoint(db, checkpoint.attempt_uid, checkpoint.step, now_us));
    unused.insert(unused.end(), blobs.begin(), blobs.end());
  }
  return unused;
}

}  // namespace sft::server
