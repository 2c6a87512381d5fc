#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "server/fleet/file_relay.h"
#include "server/store/store.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// Has the ranks of running jobs record their next steps and passes on what they recorded
// (JobService.ProfileJob). Nothing of it is stored. Thread-safe.
class Profiling {
 public:
  static constexpr int kMostRanks = 16, kMostSteps = 20, kDefaultSteps = 3;

  // Both are borrowed.
  Profiling(Store& store, FileRelay& relay) : store_(store), relay_(relay) {}

  // Returns false when the reader is gone.
  using Take = std::function<bool(const v1::ProfileJobResponse& response)>;
  // Waits for the nodes, until `gone` says that the reader has gone.
  absl::Status Profile(const v1::ProfileJobRequest& request, const Take& take,
                       const FileRelay::Gone& gone);

 private:
  struct Place {
    std::string node;
    std::vector<int> ranks;  // that are asked there
  };
  struct Plan {
    std::string job_id, attempt_uid;
    std::vector<Place> places;
  };
  // The jobs that are being profiled.
  struct Profiled {
    Mutex mutex;
    std::set<std::string> ids SFT_GUARDED_BY(mutex);
  };
  class Claim;
  absl::StatusOr<Plan> Find(const v1::ProfileJobRequest& request);

  Store& store_;
  FileRelay& relay_;
  Profiled profiled_;
};

}  // namespace sft::server
