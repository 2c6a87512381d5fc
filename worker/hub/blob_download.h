#pragma once

#include <functional>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/hub/hub.h"
#include "worker/hub/hub_cache.h"
#include "worker/hub/model_peers.h"

namespace sft::worker {

// Where a file comes from.
struct BlobSource {
  const hub::Hub& hub;
  std::string id;
  std::string commit;
  ModelPeers* peers = nullptr;  // that are asked for bytes before the hub is; null: none
};

// What a download tells while it runs, and is told. Called from its own thread.
struct BlobWatch {
  hub::StopCheck stop;
  // Bytes that have come, or been found; negative when some have to come again.
  std::function<void(int64_t)> on_bytes;
  // Whether a file that is there is read once more: jobs found something wrong with it.
  bool verify = false;
  // Bytes of a file that came from another node.
  std::function<void(const std::string& node, int64_t bytes)> on_node_bytes = {};
};

// Brings one file into the cache, and checks its bytes against the hash that the hub names it by.
// Other nodes are asked for them first, each time as far as they go; what they cannot give, or gave
// with other bytes, comes from the hub.
// What came before a break, a stop or the end of the process is kept and continued, by this call or
// a later one. While another program downloads the same file, it is waited for.
//
// Errors are those of hub::Hub, and: RESOURCE_EXHAUSTED when the disk is full; DATA_LOSS when the
// bytes arrive wrong time and again; ABORTED when `stop` said so.
absl::Status DownloadBlob(const BlobSource& source, const hub::HubFile& file, const HubCache& cache,
                          const BlobWatch& watch, Clock& clock);

}  // namespace sft::worker
