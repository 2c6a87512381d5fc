#include "server/stored/storage_survey.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <tuple>

#include "common/io/disk_space.h"
#include "common/io/file.h"
#include "server/core/convert.h"

namespace sft::server {
namespace {

constexpr int kPage = 200;

int64_t ModifiedUs(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? int64_t{info.st_mtime} * 1'000'000 : 0;
}

using Items = std::vector<v1::StoredItem>;

// Hides what other projects do with data that several projects have.
void HideOthers(v1::StoredItem& item) {
  item.clear_owner();
  item.clear_display_name();
  item.clear_jobs();
  item.clear_live_jobs();
  item.clear_last_use();
}

void SortBySize(Items& items) {
  std::sort(items.begin(), items.end(), [](const auto& a, const auto& b) {
    return std::tuple(-a.bytes(), a.name(), a.kind()) < std::tuple(-b.bytes(), b.name(), b.kind());
  });
}

}  // namespace

// Sums by kind and by project, and the largest items.
class StorageSurvey::Tally {
 public:
  void Add(v1::StoredItem item, const std::vector<std::string>& projects) {
    if (item.node().empty()) {
      Sum(kinds_[item.kind()], item);
      for (const std::string& project : projects) Sum(projects_[project][item.kind()], item);
    }
    for (const std::string& project : projects) {
      v1::StoredItem& own = *Keep(items_[project], item);
      own.set_project(project);
      if (projects.size() > 1) HideOthers(own);
    }
    Keep(biggest_, item);
  }
  // Adds bytes of one job: its attempts and curves are one item.
  void AddJob(const store::Holder& job, v1::StoredKind kind, int64_t bytes) {
    if (bytes == 0) return;
    v1::StoredItem item;
    item.set_name(job.job_id);
    item.set_kind(kind);
    item.set_bytes(bytes);
    item.set_project(job.project);
    item.set_owner(job.owner);
    item.set_display_name(job.display_name);
    item.set_live_jobs(job.live ? 1 : 0);
    item.set_jobs(1);
    if (!job.live) *item.mutable_last_use() = ToTimestamp(job.ended_us);
    Add(std::move(item), {job.project});
  }
  void AddFile(v1::StoredKind kind, const std::string& name, const std::string& path) {
    const int64_t bytes = io::TreeBytes(path);
    if (bytes == 0) return;
    v1::StoredItem item;
    item.set_name(name);
    item.set_kind(kind);
    item.set_bytes(bytes);
    *item.mutable_last_use() = ToTimestamp(ModifiedUs(path));
    Add(std::move(item), {});
  }

  void Fill(v1::Storage& storage, const std::vector<v1::StorageQuota>& quotas) {
    for (const auto& [kind, use] : kinds_) *storage.add_kinds() = use;
    for (const v1::StorageQuota& quota : quotas) projects_[quota.project()];
    for (const auto& [name, kinds] : projects_) {
      v1::ProjectUse& project = *storage.add_projects();
      project.set_project(name);
      for (const auto& [kind, use] : kinds) *project.add_kinds() = use;
      for (const v1::StorageQuota& quota : quotas) {
        if (quota.project() == name) *project.mutable_quota() = quota;
      }
    }
    Trim(biggest_);
    storage.mutable_biggest()->Add(biggest_.begin(), biggest_.end());
  }
  // Returns the largest items of each project.
  std::map<std::string, Items> TakeItems() {
    for (auto& [project, items] : items_) Trim(items);
    return std::move(items_);
  }

 private:
  static void Sum(v1::KindUse& use, const v1::StoredItem& item) {
    use.set_kind(item.kind());
    use.set_items(use.items() + 1);
    use.set_bytes(use.bytes() + item.bytes());
  }
  static v1::StoredItem* Keep(Items& items, const v1::StoredItem& item) {
    if (items.size() >= 2 * kMaxItems) Trim(items);
    return &items.emplace_back(item);
  }
  static void Trim(Items& items) {
    SortBySize(items);
    if (items.size() > kMaxItems) items.resize(kMaxItems);
  }

  std::map<v1::StoredKind, v1::KindUse> kinds_;
  std::map<std::string, std::map<v1::StoredKind, v1::KindUse>> projects_;
  Items biggest_;
  std::map<std::string, Items> items_;
};

absl::Status StorageSurvey::AddDatasets(Tally& tally) {
  std::string after;
  for (bool more = true; more;) {
    std::vector<store::DatasetUse> page;
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(page, store::DatasetUses(db, after, kPage));
      return absl::OkStatus();
    }));
    for (const store::DatasetUse& use : page) {
      after = use.dataset.sha256;
      v1::StoredItem item;
      item.set_name("dataset:" + use.dataset.sha256);
      item.set_kind(v1::DATASETS);
      item.set_bytes(use.dataset.size);
      item.set_project(fmt::format("{}", fmt::join(use.projects, ",")));
      item.set_owner(use.dataset.owner);
      item.set_display_name(use.dataset.display_name);
      *item.mutable_last_use() = ToTimestamp(use.last_used_us);
      item.set_live_jobs(use.live_jobs);
      item.set_jobs(use.jobs);
      tally.Add(std::move(item), use.projects);
    }
    more = page.size() == kPage;
  }
  return absl::OkStatus();
}

absl::Status StorageSurvey::AddArtifacts(Tally& tally) {
  std::string after;
  for (bool more = true; more;) {
    std::vector<store::ArtifactUse> page;
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(page, store::ArtifactUses(db, after, kPage));
      return absl::OkStatus();
    }));
    for (const store::ArtifactUse& use : page) {
      after = use.artifact.id;
      v1::StoredItem item;
      item.set_name("artifact:" + use.artifact.id);
      item.set_kind(v1::ARTIFACTS);
      item.set_bytes(use.artifact.bytes);
      item.set_project(use.holder.project);
      item.set_owner(use.holder.owner);
      item.set_display_name(use.holder.display_name);
      *item.mutable_last_use() = ToTimestamp(use.last_used_us);
      item.set_live_jobs(use.holder.live ? 1 : 0);
      item.set_jobs(1);
      item.set_node(use.artifact.node);
      tally.Add(std::move(item), {use.holder.project});
    }
    more = page.size() == kPage;
  }
  return absl::OkStatus();
}

absl::Status StorageSurvey::AddCheckpoints(Tally& tally) {
  std::string after;
  for (bool more = true; more;) {
    std::vector<store::CheckpointUse> page;
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(page, store::CheckpointUses(db, after, kPage));
      return absl::OkStatus();
    }));
    for (const store::CheckpointUse& use : page) {
      after = use.holder.job_id;
      tally.AddJob(use.holder, v1::CHECKPOINTS, use.bytes);
    }
    more = page.size() == kPage;
  }
  return absl::OkStatus();
}

absl::Status StorageSurvey::AddTrees(Tally& tally) {
  struct Tree {
    const char* folder;
    v1::StoredKind kind;
    absl::StatusOr<std::optional<store::Holder>> (*find)(Database&, const std::string&);
  };
  const Tree trees[] = {{"logs", v1::LOGS, store::HolderOfAttempt},
                        {"metrics", v1::METRICS, store::HolderOfJob},
                        {"tensorboard", v1::METRICS, store::HolderOfJob}};
  std::map<std::pair<std::string, v1::StoredKind>, std::pair<store::Holder, int64_t>> jobs;
  for (const Tree& tree : trees) {
    const std::string folder = data_dir_ + "/" + tree.folder;
    if (!io::IsDirectory(folder)) continue;
    SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(folder));
    for (size_t at = 0; at < names.size(); at += kPage) {
      const size_t end = std::min(names.size(), at + kPage);
      std::vector<std::optional<store::Holder>> holders;
      SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
        holders.clear();
        for (size_t i = at; i < end; ++i) {
          SFT_ASSIGN_OR_RETURN(holders.emplace_back(), tree.find(db, names[i]));
        }
        return absl::OkStatus();
      }));
      for (size_t i = at; i < end; ++i) {
        // For data that a restored database does not know, the name is all there is.
        store::Holder holder = holders[i - at].value_or(store::Holder{names[i], "?"});
        auto& [of, bytes] = jobs[{holder.job_id, tree.kind}];
        of = holder;
        bytes += io::TreeBytes(folder + "/" + names[i]);
      }
    }
  }
  for (const auto& [key, job] : jobs) tally.AddJob(job.first, key.second, job.second);
  return absl::OkStatus();
}

absl::Status StorageSurvey::AddOthers(Tally& tally) {
  for (const char* store : {"blobs", "checkpoints"}) {
    const std::string folder = fmt::format("{}/{}/uploads", data_dir_, store);
    if (!io::IsDirectory(folder)) continue;
    SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(folder));
    for (const std::string& name : names) {
      tally.AddFile(v1::UPLOADS, fmt::format("{}/uploads/{}", store, name), folder + "/" + name);
    }
  }
  for (const char* store : {"blobs", "checkpoints"}) {
    const std::string folder = fmt::format("{}/{}/damaged", data_dir_, store);
    if (!io::IsDirectory(folder)) continue;
    SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(folder));
    for (const std::string& name : names) {
      tally.AddFile(v1::DAMAGED, fmt::format("{}/damaged/{}", store, name), folder + "/" + name);
    }
  }
  if (io::IsDirectory(data_dir_ + "/backups")) {
    SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(data_dir_ + "/backups"));
    for (const std::string& name : names) {
      tally.AddFile(v1::BACKUPS, "backup:" + name, data_dir_ + "/backups/" + name);
    }
  }
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(data_dir_));
  for (const std::string& name : names) {
    const std::string path = data_dir_ + "/" + name;
    if (name.starts_with("server.db.schema-")) tally.AddFile(v1::BACKUPS, "backup:" + name, path);
    if (name == "server.db" || name == "server.db-wal") tally.AddFile(v1::DATABASE, name, path);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::StorageQuota>> StorageSurvey::Quotas() {
  std::vector<v1::StorageQuota> quotas;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    quotas.clear();
    SFT_ASSIGN_OR_RETURN(const std::vector<store::Quota> rows, store::Quotas(db));
    for (const store::Quota& row : rows) {
      v1::StorageQuota& quota = quotas.emplace_back();
      quota.set_project(row.project);
      quota.set_dataset_bytes(row.dataset_bytes);
      quota.set_artifact_bytes(row.artifact_bytes);
      SFT_ASSIGN_OR_RETURN(const int64_t used, store::DatasetBytesOf(db, row.project));
      quota.set_dataset_used(used);
    }
    return absl::OkStatus();
  }));
  if (quotas.empty()) return quotas;
  SFT_ASSIGN_OR_RETURN(const auto artifacts, limits_.ArtifactBytes());
  for (v1::StorageQuota& quota : quotas) {
    const auto used = artifacts.find(quota.project());
    if (used != artifacts.end()) quota.set_artifact_used(used->second);
  }
  return quotas;
}

void StorageSurvey::Forget() {
  const MutexLock lock(mutex_);
  known_ = false;
}

absl::Status StorageSurvey::Measure() {
  Tally tally;
  SFT_RETURN_IF_ERROR(AddDatasets(tally));
  SFT_RETURN_IF_ERROR(AddArtifacts(tally));
  SFT_RETURN_IF_ERROR(AddCheckpoints(tally));
  SFT_RETURN_IF_ERROR(AddTrees(tally));
  SFT_RETURN_IF_ERROR(AddOthers(tally));
  SFT_ASSIGN_OR_RETURN(const auto quotas, Quotas());
  last_.Clear();
  *last_.mutable_measured() = ToTimestamp(UnixMicros(clock_.Wall()));
  tally.Fill(last_, quotas);
  items_ = tally.TakeItems();
  made_ = clock_.Mono();
  known_ = true;
  return absl::OkStatus();
}

v1::Storage StorageSurvey::OfProjects(const std::vector<std::string>& projects) const {
  v1::Storage storage;
  *storage.mutable_measured() = last_.measured();
  std::map<v1::StoredKind, v1::KindUse> kinds;
  Items biggest;
  for (const v1::ProjectUse& project : last_.projects()) {
    if (std::find(projects.begin(), projects.end(), project.project()) == projects.end()) continue;
    *storage.add_projects() = project;
    for (const v1::KindUse& use : project.kinds()) {
      v1::KindUse& sum = kinds[use.kind()];
      sum.set_kind(use.kind());
      sum.set_items(sum.items() + use.items());
      sum.set_bytes(sum.bytes() + use.bytes());
    }
    const auto items = items_.find(project.project());
    if (items == items_.end()) continue;
    biggest.insert(biggest.end(), items->second.begin(), items->second.end());
  }
  for (const auto& [kind, use] : kinds) *storage.add_kinds() = use;
  SortBySize(biggest);
  storage.mutable_biggest()->Add(biggest.begin(), biggest.end());
  return storage;
}

absl::StatusOr<v1::Storage> StorageSurvey::Get(
    int biggest, const std::optional<std::vector<std::string>>& projects) {
  const MutexLock lock(mutex_);
  if (!known_ || clock_.Mono() - made_ >= kPeriod) SFT_RETURN_IF_ERROR(Measure());
  v1::Storage storage = projects ? OfProjects(*projects) : last_;
  *storage.mutable_disk() = disk_.Look();
  const int most = biggest <= 0 ? 20 : biggest;
  if (storage.biggest_size() > most) {
    storage.mutable_biggest()->DeleteSubrange(most, storage.biggest_size() - most);
  }
  return storage;
}

}  // namespace sft::server
