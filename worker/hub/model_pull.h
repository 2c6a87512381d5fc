#pragma once

#include <functional>
#include <map>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/hub/hub.h"
#include "common/hub/model_name.h"
#include "worker/hub/model_peers.h"

namespace sft::worker {

// How far the download of a model is.
struct PullProgress {
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;  // 0: not known yet
};

// What a download of a model is told, and tells.
struct PullWatch {
  hub::StopCheck stop;
  // Called from several threads, about ten times a second each.
  std::function<void(const PullProgress&)> on_progress;
  // Called once the sizes are known, before any byte is written: whether there is room for that
  // many more.
  std::function<absl::Status(int64_t)> make_room;
  // Whether files that are there are read once more (BlobWatch).
  bool verify = false;
  ModelPeers* peers = nullptr;  // other nodes that may have it (BlobSource)
};

// A model that is in the cache.
struct PulledModel {
  std::string snapshot_dir;
  std::string commit;
  int64_t bytes = 0;  // of its files
  Nanos took{0};      // the download, with the wait for another job's; set by ModelStore
  std::map<std::string, int64_t> from_nodes = {};  // bytes that other nodes sent, by node
};

// Brings a model into the hub cache below `hub_dir`: what jobs need of it, checked against the
// hashes that the hub names (DownloadBlob, with its errors). Without a revision it is the main
// branch. The snapshot appears when all of it is there.
absl::StatusOr<PulledModel> PullModel(const hub::Hub& hub, const hub::ModelName& name,
                                      const std::string& hub_dir, const PullWatch& watch,
                                      Clock& clock);

}  // namespace sft::worker
