#include "server/gangs/desired.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/base/version.h"
#include "common/spec/job_protocol.h"
#include "server/gangs/gang_life.h"
#include "server/resume/job_folders.h"
#include "server/resume/resume.h"
#include "server/store/attempts.h"
#include "server/store/checkpoints.h"
#include "server/store/jobs.h"
#include "server/store/node_holds.h"
#include "server/store/nodes.h"
#include "server/store/storage.h"

namespace sft::server {
namespace {

// A job as the worker of a node knows it. Where it would lose something by that (it was replaced by
// an older one since the job was placed on it), the worker gets all, and refuses it by name.
absl::StatusOr<std::string> JobFor(Database& db, const JobRecord& job, int protocol) {
  if (protocol >= kProtocol || protocol < job.protocol) return store::ReadSpecText(db, job);
  const absl::StatusOr<spec::JobSpec> spec = store::ReadSpec(db, job);
  if (absl::IsDataLoss(spec.status())) return store::ReadSpecText(db, job);
  SFT_RETURN_IF_ERROR(spec.status());
  return DumpJson(spec::ForProtocol(*spec, protocol));
}

// The other jobs whose folders this one names in its paths and may read.
absl::Status FillFolders(Database& db, const JobRecord& job,
                         const std::vector<JobFileRecord>& files, v1::Dispatch& dispatch) {
  std::vector<std::string> paths = {job.model};
  for (const JobFileRecord& file : files) paths.push_back(file.node_path);
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> readable,
                       ReadableJobs(db, {job.owner, job.project}, JobsInPaths(paths)));
  v1::JobFolders& folders = *dispatch.mutable_folders();
  for (const std::string& id : readable) folders.add_jobs(id);
  return absl::OkStatus();
}

absl::Status FillDispatch(Database& db, const AttemptRecord& attempt, const MemberRecord& member,
                          int protocol, v1::Dispatch& dispatch) {
  SFT_ASSIGN_OR_RETURN(const JobRecord job, store::GetJob(db, attempt.job_id));
  SFT_ASSIGN_OR_RETURN(const std::vector<JobFileRecord> files, store::FilesOfJob(db, job.id));
  SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members, store::MembersOf(db, attempt.uid));
  int world_size = 0;
  for (const MemberRecord& each : members) world_size += static_cast<int>(each.slots.size());
  dispatch.set_job(job.display_name);
  dispatch.set_job_id(job.id);
  dispatch.set_attempt(attempt.number);
  SFT_ASSIGN_OR_RETURN(*dispatch.mutable_resolved_json(), JobFor(db, job, protocol));
  dispatch.set_node_rank(member.status.node_rank);
  dispatch.set_first_rank(member.first_rank);
  dispatch.set_world_size(world_size);
  for (const int slot : member.slots) dispatch.add_slots(slot);
  for (const JobFileRecord& file : files) {
    auto* added = dispatch.add_files();
    added->set_key(file.key);
    added->set_sha256(file.sha256);
    added->set_node_path(file.node_path);
    added->set_size(file.size);
    added->set_name(file.client_path);
  }
  SFT_RETURN_IF_ERROR(FillFolders(db, job, files, dispatch));
  return FillResume(db, job, attempt, member.status.node, dispatch);
}

// A deleted checkpoint is named so long, for nodes that were away.
constexpr int64_t kNamedAfterDeletionUs = int64_t{7} * 24 * 3600 * 1'000'000;

void AddKept(const std::vector<store::KeptStep>& kept, bool shared, v1::CheckpointSet& set) {
  v1::CheckpointSet::OfJob* job = nullptr;
  for (const store::KeptStep& each : kept) {
    if (job == nullptr || job->job_id() != each.job_id) {
      job = set.add_jobs();
      job->set_job_id(each.job_id);
      job->set_shared(shared);
      job->set_ended(each.ended);
    }
    if (each.step > 0) job->add_steps(each.step);
  }
}

absl::Status FillCheckpoints(Database& db, const NodeRecord& node, int64_t now_us,
                             v1::CheckpointSet& set) {
  SFT_ASSIGN_OR_RETURN(const auto kept, store::KeptOnNode(db, node.name));
  AddKept(kept, /*shared=*/false, set);
  if (!node.has_shared_folder) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const auto shared, store::KeptInShared(db, now_us - kNamedAfterDeletionUs));
  AddKept(shared, /*shared=*/true, set);
  return absl::OkStatus();
}

// What an ending attempt's node does with checkpoints.
absl::Status FillStop(Database& db, const AttemptRecord& attempt, v1::DesiredAttempt& wanted) {
  SFT_ASSIGN_OR_RETURN(const JobRecord job, store::GetJob(db, attempt.job_id));
  wanted.set_intent(v1::DesiredAttempt::STOP);
  wanted.set_cancelled(job.cancel_requested);
  // A cancel says itself whether one is wanted; a job that is told to stop goes on from it.
  const bool told = !attempt.stop_code.empty() && !job.cancel_requested;
  // Answers are kept as they come.
  const bool saves = job.kind == v1::Job::SFT;
  wanted.set_checkpoint_first(saves && (told || (job.cancel_requested && job.cancel_checkpoint)));
  if (told) wanted.set_checkpoint_patience_seconds(kStopPatienceSeconds);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::Desired> BuildDesired(Database& db, const NodeRecord& node, int64_t now_us) {
  v1::Desired desired;
  SFT_RETURN_IF_ERROR(FillCheckpoints(db, node, now_us, *desired.mutable_checkpoints()));
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> removed,
                       store::RemovedOnNode(db, node.name, now_us - kNamedAfterDeletionUs));
  for (const std::string& path : removed) desired.add_removed_models(path);
  SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members, store::HeldMembers(db, node.name));
  for (const MemberRecord& member : members) {
    SFT_ASSIGN_OR_RETURN(const AttemptRecord attempt, store::GetAttempt(db, member.attempt_uid));
    auto* wanted = desired.add_attempts();
    wanted->set_attempt_uid(attempt.uid);
    wanted->set_epoch(attempt.epoch);
    wanted->set_reason(attempt.reason);
    wanted->set_collect_checkpoint(attempt.collecting);
    if (IsTerminal(attempt.state)) {
      wanted->set_intent(v1::DesiredAttempt::FORGET);
      continue;
    }
    if (attempt.state == AttemptState::kStopping) {
      SFT_RETURN_IF_ERROR(FillStop(db, attempt, *wanted));
      continue;
    }
    wanted->set_intent(v1::DesiredAttempt::RUN);
    wanted->set_checkpoints_asked(attempt.checkpoints_asked);
    wanted->set_rendezvous(attempt.rendezvous);
    if (!member.status.seen) {
      SFT_RETURN_IF_ERROR(
          FillDispatch(db, attempt, member, node.protocol, *wanted->mutable_dispatch()));
    }
  }
  return desired;
}

void ForgetStrangers(const v1::Observed& observed, v1::Desired& desired) {
  for (const v1::AttemptStatus& status : observed.attempts()) {
    if (status.state() != v1::AttemptStatus::DONE) continue;
    const auto& wanted = desired.attempts();
    const bool known = std::any_of(wanted.begin(), wanted.end(), [&](const auto& attempt) {
      return attempt.attempt_uid() == status.attempt_uid() && attempt.epoch() == status.epoch();
    });
    if (known) continue;
    auto* forgotten = desired.add_attempts();
    forgotten->set_attempt_uid(status.attempt_uid());
    forgotten->set_epoch(status.epoch());
    forgotten->set_intent(v1::DesiredAttempt::FORGET);
  }
}

}  // namespace sft::server
