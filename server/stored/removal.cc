#include "server/stored/removal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "common/base/bytes.h"
#include "common/io/disk_space.h"
#include "common/io/file.h"
#include "common/io/paths.h"
#include "server/core/convert.h"
#include "server/state/names.h"
#include "server/store/attempts.h"
#include "server/store/checkpoints.h"
#include "server/store/feed.h"
#include "server/store/files.h"
#include "server/store/jobs.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

constexpr std::string_view kDataset = "dataset:", kArtifact = "artifact:", kBackup = "backup:";
constexpr char kBeforeMigration[] = "server.db.schema-";
constexpr int kMaxAttempts = 1000;
constexpr int kJobsNamed = 3;

absl::StatusOr<std::vector<std::string>> OwnersAmong(Database& db,
                                                     const std::vector<std::string>& projects,
                                                     const std::string& sha256) {
  std::vector<std::string> owners;
  for (const std::string& project : projects) {
    SFT_ASSIGN_OR_RETURN(const bool owns, store::OwnsDataset(db, project, sha256));
    if (owns) owners.push_back(project);
  }
  return owners;
}

absl::StatusOr<store::DatasetJobs> JobsOf(Database& db, const std::vector<std::string>& projects,
                                          const std::string& sha256) {
  store::DatasetJobs sum;
  for (const std::string& project : projects) {
    SFT_ASSIGN_OR_RETURN(const store::DatasetJobs jobs,
                         store::JobsWithDataset(db, sha256, project, kJobsNamed));
    sum.all += jobs.all;
    sum.live += jobs.live;
    sum.ids.insert(jobs.live > 0 ? sum.ids.begin() : sum.ids.end(), jobs.ids.begin(),
                   jobs.ids.end());
  }
  sum.ids.resize(std::min<size_t>(sum.ids.size(), kJobsNamed));
  return sum;
}

// OK when the jobs that name a data set no longer need it.
absl::Status CheckRemovable(const std::string& sha256, const store::DatasetJobs& jobs, bool force) {
  const std::string named =
      fmt::format("{}{}", fmt::join(jobs.ids, ", "), jobs.all > kJobsNamed ? ", ..." : "");
  if (jobs.live > 0) {
    return FailedPrecondition(
        fmt::format("data set {} stays: {} job{} that {} not ended {} it ({})", sha256, jobs.live,
                    jobs.live == 1 ? "" : "s", jobs.live == 1 ? "has" : "have",
                    jobs.live == 1 ? "names" : "name", named));
  }
  if (jobs.all > 0 && !force) {
    return FailedPrecondition(fmt::format(
        "data set {} is named by {} ended job{} ({}): without it they cannot be resumed. --force "
        "removes it all the same; the next submit that needs it uploads it again",
        sha256, jobs.all, jobs.all == 1 ? "" : "s", named));
  }
  return absl::OkStatus();
}

}  // namespace

void Removal::Add(const store::Holder& job, v1::StoredKind kind, const std::string& name,
                  int64_t bytes, Task& task) {
  v1::StoredItem& item = *task.done.add_removed();
  item.set_name(name);
  item.set_kind(kind);
  item.set_bytes(bytes);
  item.set_project(job.project);
  item.set_owner(job.owner);
  item.set_display_name(job.display_name);
  task.done.set_freed_bytes(task.done.freed_bytes() + bytes);
}

absl::Status Removal::NoteIn(Database& db, const store::Holder& job, const store::Removal& removal,
                             const std::string& what) const {
  store::Removal row = removal;
  row.job_id = job.job_id;
  row.time_us = UnixMicros(clock_.Wall());
  SFT_RETURN_IF_ERROR(store::PutRemoval(db, row));
  return store::AddEvent(db, job.job_id,
                         {0, row.time_us, "removed",
                          fmt::format("{} ({}), by {}", what, BytesText(row.bytes), row.who), 0});
}

absl::Status Removal::Note(const store::Holder& job, v1::StoredKind kind, int64_t bytes,
                           const std::string& what, const Task& task) {
  store::Removal removal;
  removal.kind = kind;
  removal.who = task.actor.name;
  removal.bytes = bytes;
  SFT_RETURN_IF_ERROR(
      store_.Write([&](Database& db) { return NoteIn(db, job, removal, what); }, task.actor.audit));
  hub_.Bump(job.job_id);
  return absl::OkStatus();
}

absl::Status Removal::RemoveLogs(const store::Holder& job, Task& task) {
  std::vector<AttemptRecord> attempts;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(attempts, store::AttemptsOfJob(db, job.job_id, kMaxAttempts));
    return absl::OkStatus();
  }));
  int64_t bytes = 0;
  for (const AttemptRecord& attempt : attempts) {
    bytes += io::TreeBytes(data_dir_ + "/logs/" + attempt.uid);
    if (!task.dry_run) SFT_RETURN_IF_ERROR(stores_.logs.Remove(attempt.uid));
  }
  if (bytes == 0) return absl::OkStatus();
  Add(job, v1::LOGS, job.job_id, bytes, task);
  return task.dry_run ? absl::OkStatus() : Note(job, v1::LOGS, bytes, "its logs", task);
}

absl::Status Removal::RemoveMetrics(const store::Holder& job, Task& task) {
  const int64_t bytes = io::TreeBytes(data_dir_ + "/metrics/" + job.job_id) +
                        io::TreeBytes(data_dir_ + "/tensorboard/" + job.job_id);
  if (bytes == 0) return absl::OkStatus();
  Add(job, v1::METRICS, job.job_id, bytes, task);
  if (task.dry_run) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(stores_.metrics.Remove(job.job_id));
  SFT_RETURN_IF_ERROR(stores_.tensorboard.Remove(job.job_id));
  return Note(job, v1::METRICS, bytes, "its curve", task);
}

absl::Status Removal::RemoveCheckpoints(const store::Holder& job, Task& task) {
  SFT_ASSIGN_OR_RETURN(const Checkpoints::Dropped dropped,
                       stores_.checkpoints.DropJob(job.job_id, task.dry_run, task.actor.audit));
  if (dropped.in_use) {
    task.done.add_notes("its checkpoints stay: a job that has not ended goes on from them");
    return absl::OkStatus();
  }
  if (dropped.count == 0) return absl::OkStatus();
  if (dropped.elsewhere) {
    task.done.add_notes("checkpoints on nodes and in shared folders are removed by the workers");
  }
  Add(job, v1::CHECKPOINTS, job.job_id, dropped.bytes, task);
  if (task.dry_run) return absl::OkStatus();
  wake_();
  return Note(job, v1::CHECKPOINTS, dropped.bytes,
              fmt::format("{} checkpoint{}", dropped.count, dropped.count == 1 ? "" : "s"), task);
}

absl::Status Removal::RemoveArtifacts(const store::Holder& job, Task& task) {
  std::vector<ArtifactRecord> artifacts;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(artifacts, store::ArtifactsOfJob(db, job.job_id));
    return absl::OkStatus();
  }));
  for (const ArtifactRecord& artifact : artifacts) {
    SFT_RETURN_IF_ERROR(RemoveArtifact({artifact, job, 0}, task));
  }
  return absl::OkStatus();
}

absl::Status Removal::RemoveArtifact(const store::ArtifactUse& use, Task& task) {
  const ArtifactRecord& artifact = use.artifact;
  if (use.holder.live) {
    return FailedPrecondition(fmt::format("artifact {} is of job {}, which has not ended: it stays",
                                          artifact.id, use.holder.job_id));
  }
  const bool on_node = !artifact.node.empty();
  const std::string name = fmt::format("{}{}", kArtifact, artifact.id);
  store::Removal removal;
  removal.kind = v1::ARTIFACTS;
  removal.who = task.actor.name;
  removal.bytes = artifact.bytes;
  if (on_node) removal.node = artifact.node, removal.path = artifact.node_path;
  {
    // Held from the check for other references until the blob is gone, so that no new one can be
    // made.
    const MutexLock lock(stores_.blobs.gate());
    std::vector<ArtifactFileRecord> unused;
    const absl::Status done = store_.Write(
        [&](Database& db) -> absl::Status {
          if (on_node) {
            SFT_ASSIGN_OR_RETURN(const std::string trains,
                                 store::LiveJobWithModel(db, artifact.node_path));
            if (!trains.empty()) {
              return FailedPrecondition(
                  fmt::format("artifact {} is the model of job {}, which has not ended: it stays",
                              artifact.id, trains));
            }
          }
          SFT_ASSIGN_OR_RETURN(const std::string user, store::LiveJobWithAdapter(db, artifact.id));
          if (!user.empty()) {
            return FailedPrecondition(fmt::format(
                "artifact {} is the adapter that job {} uses, which has not ended: it stays",
                artifact.id, user));
          }
          SFT_ASSIGN_OR_RETURN(unused, store::DeleteArtifact(db, artifact));
          // In the same transaction: the node learns only from that row what it has to remove.
          SFT_RETURN_IF_ERROR(
              NoteIn(db, use.holder, removal, fmt::format("its {}", artifact.kind)));
          // Rolls back the transaction.
          return task.dry_run ? absl::CancelledError("a dry run") : absl::OkStatus();
        },
        task.actor.audit);
    if (!task.dry_run || !absl::IsCancelled(done)) SFT_RETURN_IF_ERROR(done);
    int64_t freed = 0;
    for (const ArtifactFileRecord& file : unused) {
      if (!task.dry_run) SFT_RETURN_IF_ERROR(stores_.blobs.Remove(file.sha256));
      freed += file.size;
    }
    Add(use.holder, v1::ARTIFACTS, name, freed, task);
  }
  if (!task.dry_run) hub_.Bump(use.holder.job_id);
  if (on_node) {
    task.done.mutable_removed(task.done.removed_size() - 1)->set_node(artifact.node);
    task.done.add_notes(
        fmt::format("the {} of {} lies on {}, which removes it when it next hears "
                    "of the server",
                    artifact.kind, BytesText(artifact.bytes), artifact.node));
    wake_();
  }
  return absl::OkStatus();
}

absl::Status Removal::NoteDataset(Database& db, const std::string& project,
                                  const store::DatasetUse& use, const Task& task) const {
  store::FeedEvent event;
  event.time_us = UnixMicros(clock_.Wall());
  event.project = project;
  event.subject = fmt::format("{}{}", kDataset, use.dataset.sha256);
  event.type = "removed";
  event.message = fmt::format("data set {} ({}), by {}", use.dataset.display_name,
                              BytesText(use.dataset.size), task.actor.name);
  return store::FeedOther(db, event);
}

absl::Status Removal::RemoveDataset(const std::string& sha256, Task& task) {
  if (!task.dry_run) spdlog::info("data set {} is to go, says {}", sha256, task.actor.name);
  const MutexLock lock(stores_.blobs.gate());
  store::DatasetUse use;
  std::vector<std::string> owners;
  bool goes = false, blob_stays = false;
  // Check and removal are one transaction: a submit that names the data set comes before or after.
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_ASSIGN_OR_RETURN(use, store::DatasetUseOf(db, sha256));
        owners.clear();
        store::DatasetJobs jobs;
        if (task.projects == nullptr) {
          SFT_ASSIGN_OR_RETURN(jobs, store::JobsWithDataset(db, sha256, "", kJobsNamed));
        } else {
          SFT_ASSIGN_OR_RETURN(owners, OwnersAmong(db, *task.projects, sha256));
          if (owners.empty()) return store::NoDataset(sha256);
          SFT_ASSIGN_OR_RETURN(jobs, JobsOf(db, owners, sha256));
        }
        SFT_RETURN_IF_ERROR(CheckRemovable(sha256, jobs, task.force));
        if (task.dry_run) return absl::OkStatus();
        // Copies of other projects stay theirs.
        bool left = false;
        for (const std::string& project : owners) {
          SFT_ASSIGN_OR_RETURN(left, store::DropDatasetOwner(db, project, sha256));
        }
        for (const std::string& project : task.projects == nullptr ? use.projects : owners) {
          SFT_RETURN_IF_ERROR(NoteDataset(db, project, use, task));
        }
        goes = !left && use.jobs == jobs.all;
        if (!goes) return absl::OkStatus();
        SFT_RETURN_IF_ERROR(store::DeleteDataset(db, sha256));
        SFT_ASSIGN_OR_RETURN(blob_stays, store::BlobInUse(db, sha256));
        return absl::OkStatus();
      },
      task.actor.audit));
  if (goes && !blob_stays) SFT_RETURN_IF_ERROR(stores_.blobs.Remove(sha256));
  store::Holder holder;
  const bool all = task.projects == nullptr;
  holder.project = fmt::format("{}", fmt::join(all ? use.projects : owners, ","));
  if (all) {
    holder.owner = use.dataset.owner;
    holder.display_name = use.dataset.display_name;
    if (blob_stays) task.done.add_notes("its bytes stay: an artifact has the same");
  }
  // For this project it is gone, even if another has the same.
  Add(holder, v1::DATASETS, fmt::format("{}{}", kDataset, sha256),
      all && blob_stays ? 0 : use.dataset.size, task);
  return absl::OkStatus();
}

absl::Status Removal::RemoveBackup(const std::string& name, Task& task) {
  const bool plain = io::IsSafeRelative(name) && name.find('/') == std::string::npos;
  const std::string path = name.starts_with(kBeforeMigration)
                               ? fmt::format("{}/{}", data_dir_, name)
                               : fmt::format("{}/backups/{}", data_dir_, name);
  if (!plain || !io::Exists(path)) {
    return NotFound(
        fmt::format("no backup \"{}\" in the data folder: `sftctl storage` shows them", name));
  }
  if (name.ends_with(".partial")) {
    return FailedPrecondition(
        fmt::format("{} is being made, or was left by a server that was killed: that is removed "
                    "after a day",
                    name));
  }
  Add({}, v1::BACKUPS, fmt::format("{}{}", kBackup, name), io::TreeBytes(path), task);
  return task.dry_run ? absl::OkStatus() : io::RemoveAll(path);
}

absl::Status Removal::RemoveJob(const std::string& name, const std::set<int>& kinds, Task& task) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
  store::Holder job;
  std::vector<JobFileRecord> files;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const JobRecord record, store::FindJob(db, ref));
    SFT_ASSIGN_OR_RETURN(const auto holder, store::HolderOfJob(db, record.id));
    job = holder.value();
    SFT_ASSIGN_OR_RETURN(files, store::FilesOfJob(db, record.id));
    return absl::OkStatus();
  }));
  if (job.live) {
    return FailedPrecondition(
        fmt::format("job {} has not ended, and all of it stays until then: `sftctl cancel {}` ends "
                    "it",
                    job.job_id, job.job_id));
  }
  const auto wanted = [&](v1::StoredKind kind) { return kinds.empty() || kinds.contains(kind); };
  if (wanted(v1::ARTIFACTS)) SFT_RETURN_IF_ERROR(RemoveArtifacts(job, task));
  if (wanted(v1::CHECKPOINTS)) SFT_RETURN_IF_ERROR(RemoveCheckpoints(job, task));
  if (wanted(v1::LOGS)) SFT_RETURN_IF_ERROR(RemoveLogs(job, task));
  if (wanted(v1::METRICS)) SFT_RETURN_IF_ERROR(RemoveMetrics(job, task));
  if (!kinds.empty()) return absl::OkStatus();
  for (const JobFileRecord& file : files) {
    if (file.sha256.empty()) continue;
    task.done.add_notes(
        fmt::format("its data set of {} stays, as other jobs may name it: `sftctl "
                    "rm dataset:{}`",
                    BytesText(file.size), file.sha256));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::RemoveStoredResponse> Removal::Remove(
    const v1::RemoveStoredRequest& request, const Actor& actor,
    const std::optional<std::vector<std::string>>& projects) {
  Task task{actor, request.dry_run(), request.force(), {}, projects ? &*projects : nullptr};
  const std::string& name = request.name();
  std::set<int> kinds(request.kinds().begin(), request.kinds().end());
  for (const int kind : kinds) {
    if (kind != v1::LOGS && kind != v1::METRICS && kind != v1::ARTIFACTS &&
        kind != v1::CHECKPOINTS) {
      return InvalidArgument(fmt::format("a job has no {}", v1::StoredKind_Name(kind)));
    }
  }
  if (name.starts_with(kDataset)) {
    SFT_RETURN_IF_ERROR(RemoveDataset(name.substr(kDataset.size()), task));
  } else if (name.starts_with(kArtifact)) {
    store::ArtifactUse use;
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(use, store::ArtifactUseOf(db, name.substr(kArtifact.size())));
      return absl::OkStatus();
    }));
    SFT_RETURN_IF_ERROR(RemoveArtifact(use, task));
  } else if (name.starts_with(kBackup)) {
    SFT_RETURN_IF_ERROR(RemoveBackup(name.substr(kBackup.size()), task));
  } else {
    SFT_RETURN_IF_ERROR(RemoveJob(name, kinds, task));
  }
  return std::move(task.done);
}

}  // namespace sft::server
