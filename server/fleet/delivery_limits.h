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

// How much of what an attempt delivers may lie on the server at a time: files of its checkpoints
// and of its artifact, whole and in part. By the weights that it trains and the checkpoints that
// its job keeps, with room to spare; what was removed again does not count. RESOURCE_EXHAUSTED
// beyond that: the worker keeps what it has, tells why it waits and tries again. Thread-safe.
class DeliveryLimits {
 public:
  // Where the weights or the number of checkpoints are not known.
  static constexpr int64_t kUnknownBytes = 1'000'000'000'000;
  // Of one attempt in one store.
  static constexpr int kMaxFiles = 16'384;

  // All are borrowed.
  DeliveryLimits(Store& store, FleetCatalog& fleet, DiskWatch& disk, NodeRefusals& refusals,
                 int64_t unknown_bytes = kUnknownBytes)
      : store_(store),
        fleet_(fleet),
        disk_(disk),
        refusals_(refusals),
        unknown_bytes_(unknown_bytes) {}

  // One file on its way.
  struct File {
    std::string node, attempt_uid;  // empty: of a worker of the version before
    std::string key;                // as whose the blob store knows it
    std::string sha256;
    int64_t size = 0;
  };
  // Its room, while it comes.
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
  // Whether the disk has room for what has begun.
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
