#pragma once

#include "common/base/status.h"
#include "worker/daemon/options.h"

namespace sft::worker {

// The daemon: makes the parts from the options, runs until SIGTERM or SIGINT. Ranks that run then
// go on under their shims; the next start takes them up again.
absl::Status RunWorker(const Options& options);

}  // namespace sft::worker
