#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "server/blob/blob_store.h"
#include "server/blob/log_store.h"
#include "server/blob/metric_log.h"
#include "server/blob/tensorboard.h"
#include "server/core/access.h"
#include "server/core/change_hub.h"
#include "server/store/storage.h"
#include "server/store/store.h"
#include "server/stored/checkpoints.h"
#include "sft/v1/storage_service.pb.h"

namespace sft::server {

// Removes stored data, on request or by age. Data in use stays: all data of a job that has not
// ended, a data set that such a job names, checkpoints that one continues from. Each removal from a
// job is recorded as an event of it. Thread-safe.
class Removal {
 public:
  // Age limits: after a job's end or, for data sets and artifacts, after their last use; for nodes
  // that have left, after they were heard last, and for their keys, after the end of their last
  // certificate. 0: kept for ever.
  struct Ages {
    Nanos logs{0}, metrics{0}, artifacts{0}, datasets{0}, backups{0}, nodes{0};
  };
  struct Stores {
    BlobStore& blobs;
    LogStore& logs;
    MetricLog& metrics;
    TensorBoard& tensorboard;
    Checkpoints& checkpoints;
  };
  // Age at which parts of uploads, and blobs without references, are dropped.
  static constexpr std::chrono::hours kKeepOrphans{7 * 24};

  // All but the folder and the ages are borrowed. `wake` requests a reconcile tick, to tell nodes
  // which models are removed. `access` has the nodes' keys; null: there are none.
  Removal(Store& store, Clock& clock, std::string data_dir, Stores stores, ChangeHub& hub,
          std::function<void()> wake, Ages ages, Access* access = nullptr)
      : store_(store),
        clock_(clock),
        data_dir_(std::move(data_dir)),
        stores_(stores),
        hub_(hub),
        wake_(std::move(wake)),
        ages_(ages),
        access_(access) {}

  // StorageService.RemoveStored for an authorised caller who may remove the data of these projects;
  // without projects: everything.
  absl::StatusOr<v1::RemoveStoredResponse> Remove(
      const v1::RemoveStoredRequest& request, const Actor& actor,
      const std::optional<std::vector<std::string>>& projects);
  // Removes data older than its age limit. Once an hour.
  absl::Status Retain();

 private:
  // One removal: what it may do, and what it has done.
  struct Task {
    Actor actor;
    bool dry_run = false;
    bool force = false;
    v1::RemoveStoredResponse done;
    const std::vector<std::string>* projects = nullptr;  // null: all projects
  };
  absl::Status RemoveJob(const std::string& name, const std::set<int>& kinds, Task& task);
  absl::Status RemoveLogs(const store::Holder& job, Task& task);
  absl::Status RemoveMetrics(const store::Holder& job, Task& task);
  absl::Status RemoveCheckpoints(const store::Holder& job, Task& task);
  absl::Status RemoveArtifacts(const store::Holder& job, Task& task);
  absl::Status RemoveArtifact(const store::ArtifactUse& use, Task& task);
  absl::Status RemoveDataset(const std::string& sha256, Task& task);
  absl::Status RemoveBackup(const std::string& name, Task& task);
  // Records the event and the row about it, in a transaction of its own or in that of the removal.
  absl::Status Note(const store::Holder& job, v1::StoredKind kind, int64_t bytes,
                    const std::string& what, const Task& task);
  // An event of a data set that goes, for the members of one of its projects.
  absl::Status NoteDataset(Database& db, const std::string& project, const store::DatasetUse& use,
                           const Task& task) const;
  absl::Status NoteIn(Database& db, const store::Holder& job, const store::Removal& removal,
                      const std::string& what) const;
  void Add(const store::Holder& job, v1::StoredKind kind, const std::string& name, int64_t bytes,
           Task& task);

  absl::Status RetainLogs();
  absl::Status RetainMetrics();
  absl::Status RetainArtifacts();
  absl::Status RetainDatasets();
  absl::Status RetainBackups();
  absl::Status RetainNodes();
  absl::Status DropOrphans();
  // The time `age` ago, in microseconds since the Unix epoch.
  int64_t Before(Nanos age) const { return UnixMicros(clock_.Wall() - age); }

  Store& store_;
  Clock& clock_;
  const std::string data_dir_;
  const Stores stores_;
  ChangeHub& hub_;
  const std::function<void()> wake_;
  const Ages ages_;
  Access* const access_;
};

}  // namespace sft::server
