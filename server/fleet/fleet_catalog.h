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

// What the nodes have, as submits ask about it. Kept from one to the next, and read again once
// something of it was stored. Thread-safe.
class FleetCatalog {
 public:
  // GPUs of one type.
  struct Type {
    int most = 0;            // on one node
    int64_t memory = 0;      // of the largest, in bytes; 0: not known
    bool real = false;       // nodes that have them
    bool pretended = false;  // nodes that pretend to
    std::vector<std::string> nodes;
  };
  struct Fleet {
    std::map<std::string, Type> types;
    bool has_nodes = false;
  };

  explicit FleetCatalog(Store& store) : store_(store) {}

  absl::StatusOr<std::shared_ptr<const Fleet>> Get() SFT_EXCLUDES(mutex_);
  // A model by its id or path, one that can be used before one that cannot. Null: no node has it.
  absl::StatusOr<std::shared_ptr<const ModelRecord>> FindModel(const std::string& model)
      SFT_EXCLUDES(mutex_);

 private:
  // Forgets what is too old.
  void Refresh() SFT_EXCLUDES(mutex_);

  Store& store_;
  Mutex mutex_;
  int64_t version_ SFT_GUARDED_BY(mutex_) = -1;  // Store::fleet_version
  std::shared_ptr<const Fleet> fleet_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<const ModelRecord>> models_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
