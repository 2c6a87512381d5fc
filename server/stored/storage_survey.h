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

// What takes the room in the data folder: sizes from the files themselves, whose they are from the
// database. Thread-safe; one survey at a time.
class StorageSurvey {
 public:
  // A survey looks at every file of logs and metrics: it is made at most so often.
  static constexpr std::chrono::seconds kPeriod{10};
  // Items that are remembered, largest first.
  static constexpr size_t kMaxItems = 1000;

  // All but the folder borrowed.
  StorageSurvey(Store& store, Clock& clock, std::string data_dir, DiskWatch& disk,
                IntakeLimits& limits)
      : store_(store),
        clock_(clock),
        data_dir_(std::move(data_dir)),
        disk_(disk),
        limits_(limits) {}

  // Of what these projects have; absent: of everything.
  absl::StatusOr<v1::Storage> Get(int biggest,
                                  const std::optional<std::vector<std::string>>& projects);
  // Something was removed: the next one is made anew.
  void Forget();

  // Quotas with what is used of them, by project.
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
  // The largest of each project; in last_ of all.
  std::map<std::string, std::vector<v1::StoredItem>> items_ SFT_GUARDED_BY(mutex_);
  MonoTime made_ SFT_GUARDED_BY(mutex_){};
  bool known_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft::server
