// Implementation of Removal's age limits.

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include "common/io/file.h"
#include "server/store/nodes.h"
#include "server/stored/removal.h"

namespace sft::server {
namespace {

// Items looked up in one transaction.
constexpr size_t kBatch = 100;
constexpr std::chrono::hours kKeepPartials{24};

std::string Rule(const char* option, Nanos age) {
  return fmt::format("the age limit ({} {})", option,
                     std::chrono::duration_cast<std::chrono::hours>(age).count() / 24);
}

absl::StatusOr<std::vector<std::string>> Names(const std::string& folder) {
  if (!io::IsDirectory(folder)) return std::vector<std::string>();
  return io::ListDir(folder);
}

bool IsOlder(const std::string& path, int64_t unix_us) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && int64_t{info.st_mtime} * 1'000'000 < unix_us;
}

// From a list of names, the jobs that ended before a time, each once.
template <typename Find>
absl::StatusOr<std::map<std::string, store::Holder>> EndedBefore(
    Store& store, const std::vector<std::string>& names, int64_t before_us, const Find& find) {
  std::map<std::string, store::Holder> ended;
  for (size_t at = 0; at < names.size(); at += kBatch) {
    SFT_RETURN_IF_ERROR(store.Read([&](Database& db) -> absl::Status {
      for (size_t i = at; i < std::min(names.size(), at + kBatch); ++i) {
        SFT_ASSIGN_OR_RETURN(const auto holder, find(db, names[i]));
        if (holder.has_value() && !holder->live && holder->ended_us < before_us) {
          ended[holder->job_id] = *holder;
        }
      }
      return absl::OkStatus();
    }));
  }
  return ended;
}

void Say(const v1::RemoveStoredResponse& done) {
  for (const v1::StoredItem& item : done.removed()) {
    spdlog::info("removed by age: {} {}, {} bytes", v1::StoredKind_Name(item.kind()), item.name(),
                 item.bytes());
  }
}

}  // namespace

absl::Status Removal::RetainLogs() {
  if (ages_.logs <= Nanos(0)) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const auto names, Names(data_dir_ + "/logs"));
  SFT_ASSIGN_OR_RETURN(const auto jobs,
                       EndedBefore(store_, names, Before(ages_.logs), store::HolderOfAttempt));
  for (const auto& [id, job] : jobs) {
    Task task{Rule("--keep-logs", ages_.logs), false, false, {}};
    SFT_RETURN_IF_ERROR(RemoveLogs(job, task));
    Say(task.done);
  }
  return absl::OkStatus();
}

absl::Status Removal::RetainMetrics() {
  if (ages_.metrics <= Nanos(0)) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const auto names, Names(data_dir_ + "/metrics"));
  SFT_ASSIGN_OR_RETURN(const auto jobs,
                       EndedBefore(store_, names, Before(ages_.metrics), store::HolderOfJob));
  for (const auto& [id, job] : jobs) {
    Task task{Rule("--keep-metrics", ages_.metrics), false, false, {}};
    SFT_RETURN_IF_ERROR(RemoveMetrics(job, task));
    Say(task.done);
  }
  return absl::OkStatus();
}

absl::Status Removal::RetainArtifacts() {
  if (ages_.artifacts <= Nanos(0)) return absl::OkStatus();
  std::string after;
  for (bool more = true; more;) {
    std::vector<store::ArtifactUse> page;
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(page, store::ArtifactUses(db, after, kBatch));
      return absl::OkStatus();
    }));
    for (const store::ArtifactUse& use : page) {
      after = use.artifact.id;
      if (use.holder.live || use.last_used_us >= Before(ages_.artifacts)) continue;
      Task task{Rule("--keep-artifacts", ages_.artifacts), false, false, {}};
      const absl::Status removed = RemoveArtifact(use, task);
      // A job may answer with it.
      if (!absl::IsFailedPrecondition(removed)) SFT_RETURN_IF_ERROR(removed);
      Say(task.done);
    }
    more = page.size() == kBatch;
  }
  return absl::OkStatus();
}

absl::Status Removal::RetainDatasets() {
  if (ages_.datasets <= Nanos(0)) return absl::OkStatus();
  std::string after;
  for (bool more = true; more;) {
    std::vector<store::DatasetUse> page;
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(page, store::DatasetUses(db, after, kBatch));
      return absl::OkStatus();
    }));
    for (const store::DatasetUse& use : page) {
      after = use.dataset.sha256;
      if (use.live_jobs > 0 || use.last_used_us >= Before(ages_.datasets)) continue;
      Task task{Rule("--keep-datasets", ages_.datasets), false, /*force=*/true, {}};
      const absl::Status removed = RemoveDataset(use.dataset.sha256, task);
      // A job that names it may have been submitted meanwhile.
      if (!absl::IsFailedPrecondition(removed)) SFT_RETURN_IF_ERROR(removed);
      Say(task.done);
    }
    more = page.size() == kBatch;
  }
  return absl::OkStatus();
}

absl::Status Removal::RetainBackups() {
  const std::string folder = data_dir_ + "/backups";
  SFT_ASSIGN_OR_RETURN(const auto names, Names(folder));
  for (const std::string& name : names) {
    const std::string path = folder + "/" + name;
    // A backup being made is written to all the time.
    if (name.ends_with(".partial") && IsOlder(path, Before(kKeepPartials))) {
      SFT_RETURN_IF_ERROR(io::RemoveAll(path));
    }
    if (name.ends_with(".partial") || ages_.backups <= Nanos(0)) continue;
    if (!IsOlder(path, Before(ages_.backups))) continue;
    Task task{Rule("--keep-backups", ages_.backups), false, false, {}};
    SFT_RETURN_IF_ERROR(RemoveBackup(name, task));
    Say(task.done);
  }
  return absl::OkStatus();
}

absl::Status Removal::RetainNodes() {
  if (ages_.nodes <= Nanos(0)) return absl::OkStatus();
  std::vector<std::string> dropped;
  do {
    SFT_RETURN_IF_ERROR(store_.Write([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(dropped, store::DropOldNodes(db, Before(ages_.nodes), kBatch));
      return absl::OkStatus();
    }));
    for (const std::string& node : dropped) spdlog::info("removed by age: node {}", node);
  } while (dropped.size() == kBatch);
  if (access_ == nullptr) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(dropped, access_->DropOldKeys(Before(ages_.nodes)));
  for (const std::string& node : dropped) spdlog::info("removed by age: key of node {}", node);
  return absl::OkStatus();
}

absl::Status Removal::DropOrphans() {
  SFT_ASSIGN_OR_RETURN(const BlobStore::Old old,
                       stores_.blobs.OlderThan(Before(kKeepOrphans) / 1'000'000));
  for (const std::string& file : old.uploads) {
    SFT_RETURN_IF_ERROR(stores_.blobs.DropUpload(file));
  }
  for (size_t at = 0; at < old.blobs.size(); at += kBatch) {
    std::vector<std::string> unused;
    const MutexLock lock(stores_.blobs.gate());
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      unused.clear();
      for (size_t i = at; i < std::min(old.blobs.size(), at + kBatch); ++i) {
        SFT_ASSIGN_OR_RETURN(const bool used, store::BlobInUse(db, old.blobs[i]));
        if (!used) unused.push_back(old.blobs[i]);
      }
      return absl::OkStatus();
    }));
    for (const std::string& hash : unused) {
      spdlog::info("blob {}: nothing names it: removed", hash);
      SFT_RETURN_IF_ERROR(stores_.blobs.Remove(hash));
    }
  }
  return absl::OkStatus();
}

absl::Status Removal::Retain() {
  absl::Status status = RetainLogs();
  // Independent of each other: an error in one does not stop the others.
  status.Update(RetainMetrics());
  status.Update(RetainArtifacts());
  status.Update(RetainDatasets());
  status.Update(RetainBackups());
  status.Update(RetainNodes());
  status.Update(DropOrphans());
  return status;
}

}  // namespace sft::server
