#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/blob/blob_store.h"
#include "server/core/disk_watch.h"
#include "server/fleet/fleet_catalog.h"
#include "server/gangs/node_refusals.h"
#include "server/store/store.h"

namespace sft::server {

// Limits the bytes that an attempt may have on the server at a time: files of its checkpoints and
// of its artifact, complete and partial. The limit follows from the weights that it trains and the
// checkpoints that its job keeps, with room to spare; removed files do not count.
// RESOURCE_EXHAUSTED beyond it: the worker keeps its files, reports why it waits and retries.
// Thread-safe.
class DeliveryLimits {
 public:
  // Limit where the weights or the number of checkpoints are not known.
  static constexpr int64_t kUnknownBytes = 1'000'000'000'000;
  // Per attempt and store.
  static constexpr int kMaxFiles = 16'384;

  // All are borrowed.
  DeliveryLimits(Store& store, FleetCatalog& fleet, DiskWatch& disk, NodeRefusals& refusals,
                 int64_t unknown_bytes = kUnknownBytes)
      : store_(store),
        fleet_(fleet),
        disk_(disk),
        refusals_(refusals),
        unknown_bytes_(unknown_bytes) {}

  // One file being delivered.
  struct File {
    std::string node, attempt_uid;  // empty for a worker of the previous version
    std::string key;                // the uploader's key in the blob store
    std::string sha256;
    int64_t size = 0;
  };
  // Room reserved for a file while it arrives.
  class Reservation {
   public:
    ~Reservation();
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

   private:
    friend class DeliveryLimits;
    Reservation(DeliveryLimits& limits, std::list<File>::iterator file)
        : limits_(limits), file_(file) {}
    DeliveryLimits& limits_;
    const std::list<File>::iterator file_;
  };
  absl::StatusOr<std::unique_ptr<Reservation>> Reserve(const BlobStore& blobs, const File& file);
  // Checks that the disk has room for uploads under way.
  absl::Status CheckGoingOn(const std::string& node);

 private:
  struct Limit {
    int64_t bytes = 0;
    std::string why;
  };
  absl::StatusOr<Limit> LimitOf(const std::string& attempt_uid);
  absl::Status Counted(const std::string& node, absl::Status status);

  static constexpr size_t kMaxKept = 1000;
  Store& store_;
  FleetCatalog& fleet_;
  DiskWatch& disk_;
  NodeRefusals& refusals_;
  const int64_t unknown_bytes_;
  Mutex mutex_;
  std::list<File> coming_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, Limit> limits_ SFT_GUARDED_BY(mutex_);  // by attempt, where known
};

}  // namespace sft::server
