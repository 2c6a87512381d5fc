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

// Admission limits for new data and new jobs: a nearly full disk, and the quotas of projects. Both
// give RESOURCE_EXHAUSTED and say what to remove. Running jobs are never limited. Thread-safe.
class IntakeLimits {
 public:
  // Maximum age of the cached sums over all artifacts.
  static constexpr std::chrono::seconds kArtifactsPeriod{5};

  // Uploads of one project: those under way, and all that have not ended, broken ones included.
  static constexpr size_t kMostUnderWay = 64, kMostUnfinished = 256;

  // All are borrowed.
  IntakeLimits(Store& store, Clock& clock, DiskWatch& disk)
      : store_(store), clock_(clock), disk_(disk) {}

  // Room reserved for an upload while this object lives.
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
  // Called before a data set's bytes are received: `bytes` are still to come, `size` is the whole.
  // Other uploads of the project count too, and so do `parts`, its unfinished ones (hash and
  // bytes). RESOURCE_EXHAUSTED also where these are too many; one of them may always go on.
  absl::StatusOr<std::unique_ptr<Reservation>> Reserve(const std::string& project,
                                                       const std::string& sha256, int64_t size,
                                                       int64_t bytes,
                                                       const std::map<std::string, int64_t>& parts);
  // Called in the transaction that gives a data set to the project.
  absl::Status CheckTaken(Database& db, const std::string& project, const std::string& sha256,
                          int64_t size);
  // Called while the bytes arrive.
  absl::Status CheckGoingOn() { return disk_.CheckRoom("the upload", 0); }
  // Called before a job is accepted.
  absl::Status CheckSubmit(const std::string& project, const std::vector<JobFileRecord>& files);

  // Bytes of artifacts stored on the server, by project.
  absl::StatusOr<std::map<std::string, int64_t>> ArtifactBytes();

 private:
  // That a project may have one upload more. `unfinished`: 0 where it goes on with one of these.
  static absl::Status CheckCounts(const std::string& project, size_t under_way, size_t unfinished);
  // Checks that data sets of these sizes fit beside what the project has and `others`, which are
  // being uploaded to it.
  absl::Status CheckDatasets(Database& db, const store::Quota& quota,
                             const std::map<std::string, int64_t>& sizes,
                             const std::map<std::string, int64_t>& others = {});

  Store& store_;
  Clock& clock_;
  DiskWatch& disk_;
  Mutex mutex_;
  std::list<Reservation::Upload> uploads_ SFT_GUARDED_BY(mutex_);  // in order of arrival
  std::map<std::string, int64_t> artifact_bytes_ SFT_GUARDED_BY(mutex_);
  MonoTime summed_ SFT_GUARDED_BY(mutex_){};
  bool known_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft::server
