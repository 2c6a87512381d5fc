#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/core/disk_watch.h"
#include "server/state/records.h"
#include "server/store/storage.h"
#include "server/store/store.h"

namespace sft::server {

// What keeps new data and new jobs out: a disk that is nearly full, and the quotas of projects.
// Both are RESOURCE_EXHAUSTED and say what to remove. What runs is never asked. Thread-safe.
class IntakeLimits {
 public:
  // Sums over all artifacts are as old as that at most.
  static constexpr std::chrono::seconds kArtifactsPeriod{5};

  // All borrowed.
  IntakeLimits(Store& store, Clock& clock, DiskWatch& disk)
      : store_(store), clock_(clock), disk_(disk) {}

  // Room that an upload has for as long as this lives.
  class Reservation {
   public:
    ~Reservation();
    Reservation(const Reservation&) = delete;

   private:
    friend class IntakeLimits;
    struct Upload {
      std::string project, sha256;
      int64_t size;
    };
    Reservation(IntakeLimits& limits, std::list<Upload>::iterator upload)
        : limits_(limits), upload_(upload) {}
    IntakeLimits& limits_;
    const std::list<Upload>::iterator upload_;
  };
  // Before a data set's bytes are taken; `bytes` are those to come, `size` is its whole. What else
  // the project uploads now counts, and so do `parts`, what it has begun and not finished (hash and
  // bytes).
  absl::StatusOr<std::unique_ptr<Reservation>> Reserve(const std::string& project,
                                                       const std::string& sha256, int64_t size,
                                                       int64_t bytes,
                                                       const std::map<std::string, int64_t>& parts);
  // In the transaction that gives a data set to the project.
  absl::Status CheckTaken(Database& db, const std::string& project, const std::string& sha256,
                          int64_t size);
  // While they come.
  absl::Status CheckGoingOn() { return disk_.CheckRoom("the upload", 0); }
  // Before a job is taken.
  absl::Status CheckSubmit(const std::string& project, const std::vector<JobFileRecord>& files);

  // Bytes of artifacts that the server keeps, by project.
  absl::StatusOr<std::map<std::string, int64_t>> ArtifactBytes();

 private:
  // Whether data sets of these sizes fit beside what the project has and `others`, which are on
  // their way to it.
  absl::Status CheckDatasets(Database& db, const store::Quota& quota,
                             const std::map<std::string, int64_t>& sizes,
                             const std::map<std::string, int64_t>& others = {});

  Store& store_;
  Clock& clock_;
  DiskWatch& disk_;
  Mutex mutex_;
  std::list<Reservation::Upload> uploads_ SFT_GUARDED_BY(mutex_);  // in the order they came
  std::map<std::string, int64_t> artifact_bytes_ SFT_GUARDED_BY(mutex_);
  MonoTime summed_ SFT_GUARDED_BY(mutex_){};
  bool known_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft::server
