#pragma once

#include <sys/types.h>

#include <string>

#include "common/base/status.h"
#include "worker/base/setup.h"
#include "worker/daemon/options.h"

namespace sft::worker {

// No other user may read the data folder: it holds jobs' data, logs and models.
inline constexpr mode_t kPrivateUmask = 077;

// Runs the daemon: makes the parts from the options and runs until SIGTERM or SIGINT. Running ranks
// then go on under their shims; the next start adopts them.
absl::Status RunWorker(const Options& options);

// The path of this program.
absl::StatusOr<std::string> OwnProgram();
// Builds the node's setup from the options; makes missing folders.
absl::StatusOr<NodeSetup> MakeSetup(const Options& options, const std::string& program);

}  // namespace sft::worker
