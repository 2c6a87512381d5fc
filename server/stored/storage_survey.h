#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/core/disk_watch.h"
#include "server/core/intake_limits.h"
#include "server/store/storage.h"
#include "server/store/store.h"
#include "sft/v1/storage_service.pb.h"

namespace sft::server {

// Disk usage of the data folder: sizes from the files themselves, owners from the database.
// Thread-safe; one survey at a time.
class StorageSurvey {
 public:
  // Minimum interval between surveys, each of which looks at every file of logs and metrics.
  static constexpr std::chrono::seconds kPeriod{10};
  // Items that are kept, largest first.
  static constexpr size_t kMaxItems = 1000;

  // All but the folder are borrowed.
  StorageSurvey(Store& store, Clock& clock, std::string data_dir, DiskWatch& disk,
                IntakeLimits& limits)
      : store_(store),
        clock_(clock),
        data_dir_(std::move(data_dir)),
        disk_(disk),
        limits_(limits) {}

  // Usage of these projects; without projects: of everything.
  absl::StatusOr<v1::Storage> Get(int biggest,
                                  const std::optional<std::vector<std::string>>& projects);
  // Call after a removal: the next survey is made anew.
  void Forget();

  // Quotas and their usage, by project.
  absl::StatusOr<std::vector<v1::StorageQuota>> Quotas();

 private:
  class Tally;
  absl::Status AddDatasets(Tally& tally);
  absl::Status AddArtifacts(Tally& tally);
  absl::Status AddCheckpoints(Tally& tally);
  absl::Status AddTrees(Tally& tally);
  absl::Status AddOthers(Tally& tally);
  absl::Status Measure() SFT_REQUIRES(mutex_);
  v1::Storage OfProjects(const std::vector<std::string>& projects) const SFT_REQUIRES(mutex_);

  Store& store_;
  Clock& clock_;
  const std::string data_dir_;
  DiskWatch& disk_;
  IntakeLimits& limits_;
  Mutex mutex_;
  v1::Storage last_ SFT_GUARDED_BY(mutex_);
  // The largest items of each project; in last_, of all.
  std::map<std::string, std::vector<v1::StoredItem>> items_ SFT_GUARDED_BY(mutex_);
  MonoTime made_ SFT_GUARDED_BY(mutex_){};
  bool known_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft::server
