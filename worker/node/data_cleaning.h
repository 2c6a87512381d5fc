#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "common/base/clock.h"
#include "common/io/disk_space.h"
#include "worker/base/setup.h"

// Data sets (datasets/) and what was prepared from them (cache/) stay on a node for the next job
// that needs them. All of it can be had again: from the server, by preparing.

namespace sft::worker {

// What the attempts on this node need of it.
struct DataInUse {
  std::set<std::string> blobs;  // by hash
  // What was prepared or opened since is theirs; none: there are no attempts.
  std::optional<WallTime> cache_since;
};

// When the file was written or marked last; nothing for what is no file.
std::optional<WallTime> LastUse(const std::string& path);

// Removes what nobody uses: what was not used for 30 days, and, while `space` says that the disk is
// below its low mark, the rest, least recently used first. Never what was used a moment ago: its
// attempt may not be known yet. Marks the data sets in use.
absl::Status CleanData(const DataInUse& in_use, const NodeSetup& setup, WallTime now,
                       const std::function<absl::StatusOr<io::DiskSpace>()>& space);

}  // namespace sft::worker
