#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "server/state/records.h"
#include "server/store/store.h"

namespace sft::server {

// Catalog of the nodes' GPUs and models for submits, with those of nodes that have left and whose
// like may come back (store::LeftNodes). Cached between submits, and read again after a
// change of it was stored. Thread-safe.
class FleetCatalog {
 public:
  // Summary of the GPUs of one type.
  struct Type {
    int most = 0;            // the most on one node
    int64_t memory = 0;      // memory of the largest, in bytes; 0: not known
    bool real = false;       // some node really has them
    bool pretended = false;  // some node simulates them
    std::vector<std::string> nodes;
  };
  struct Fleet {
    std::map<std::string, Type> types;
    bool has_nodes = false;
    bool downloads = false;     // some node downloads models from a hub
    bool runs_graders = false;  // some node runs programs of jobs that grade answers
  };

  explicit FleetCatalog(Store& store) : store_(store) {}

  absl::StatusOr<std::shared_ptr<const Fleet>> Get() SFT_EXCLUDES(mutex_);
  // Finds a model by id ("org/name@commit": a snapshot of that commit) or path, preferring one that
  // can be used. Null when no node has it.
  absl::StatusOr<std::shared_ptr<const ModelRecord>> FindModel(const std::string& model)
      SFT_EXCLUDES(mutex_);

 private:
  // Drops cached data that is out of date.
  void Refresh() SFT_EXCLUDES(mutex_);

  Store& store_;
  Mutex mutex_;
  int64_t version_ SFT_GUARDED_BY(mutex_) = -1;  // Store::fleet_version of the cached data
  std::shared_ptr<const Fleet> fleet_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<const ModelRecord>> models_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
