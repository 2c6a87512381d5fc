#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "common/base/clock.h"
#include "common/io/disk_space.h"
#include "worker/base/setup.h"

// Cleaning of the node's caches: data sets (datasets/) and data prepared from them (cache/) stay
// for the next job that needs them. All of it can be recovered: from the server, or by preparing.

namespace sft::worker {

// Cached data that attempts on this node use.
struct DataInUse {
  std::set<std::string> blobs;  // by hash
  // Cache files prepared or opened since then are in use; nullopt: there are no attempts.
  std::optional<WallTime> cache_since;
};

// When the file was last written or marked; nullopt if it is not a file.
std::optional<WallTime> LastUse(const std::string& path);

// Removes unused data: data not used for 30 days and, while `space` says that the disk is below its
// low mark, the rest, least recently used first. Answers that were left undelivered go after 7
// days. Recently used data stays, because its attempt may not be known yet. Marks the data sets in
// use.
absl::Status CleanData(const DataInUse& in_use, const NodeSetup& setup, WallTime now,
                       const std::function<absl::StatusOr<io::DiskSpace>()>& space);

}  // namespace sft::worker
