#pragma once

#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/obs/check_report.h"
#include "worker/base/setup.h"
#include "worker/daemon/options.h"
#include "worker/hub/model_store.h"

// The options and variables of the environment by which a worker reaches a model hub.

namespace sft::worker {

// Bytes of --model-cache-limit: "2TB"; empty: 0, no limit.
absl::StatusOr<int64_t> ParseCacheLimit(const std::string& text);

// The store of a worker with these options, and with HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE.
// Ranks can read what it downloads.
absl::StatusOr<std::unique_ptr<ModelStore>> OpenModelStore(const Options& options,
                                                           const NodeSetup& setup, Clock& clock);

// The check of the hub: reachability, certificate and token; nothing without --model-cache.
void CheckHub(const Options& options, obs::CheckReport& report);

// Runs `sft-worker pull MODEL`: downloads it and tells how far it is. The exit code.
int RunPull(const Options& options);

}  // namespace sft::worker
