#pragma once

#include <sys/types.h>

#include <string>

#include "common/base/status.h"
#include "worker/base/setup.h"
#include "worker/daemon/options.h"

namespace sft::worker {

// Of the data folder nothing is for other users: jobs' data, logs and models.
inline constexpr mode_t kPrivateUmask = 077;

// The daemon: makes the parts from the options, runs until SIGTERM or SIGINT. Ranks that run then
// go on under their shims; the next start takes them up again.
absl::Status RunWorker(const Options& options);

// Where this program lies.
absl::StatusOr<std::string> OwnProgram();
// The node as the options say it; makes the folders that are missing.
absl::StatusOr<NodeSetup> MakeSetup(const Options& options, const std::string& program);

}  // namespace sft::worker
