#pragma once

#include <string>

#include "common/base/status.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/base/setup.h"

namespace sft::worker {

// Whether a job may read a path with all links resolved: not below another job's folder, unless the
// server names it (Dispatch.folders), and not among what the worker keeps for itself. NOT_FOUND, as
// if it were not there; `name` is what the job calls it.
absl::Status CheckJobFolders(const std::string& real, const std::string& name,
                             const v1::Dispatch& dispatch, const NodeSetup& setup);
// The same of a file that the server fetches for somebody, who may read what it names.
absl::Status CheckFetchFolders(const std::string& real, const v1::FetchFile& request,
                               const NodeSetup& setup);
// The real path of a file or folder that a job names, as io::ResolveBelow below the node's roots.
absl::StatusOr<std::string> ResolveForJob(const std::string& path, const v1::Dispatch& dispatch,
                                          const NodeSetup& setup);

}  // namespace sft::worker
