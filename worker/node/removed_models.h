#pragma once

#include <set>
#include <string>

#include "common/base/status.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/base/setup.h"

namespace sft::worker {

// Deletes the full models that the server names: only folders <shared>/<job>/model, and none of a
// job in `live_jobs`. Missing ones are OK.
absl::Status RemoveModels(const v1::Desired& desired, const std::set<std::string>& live_jobs,
                          const NodeSetup& setup);

}  // namespace sft::worker
