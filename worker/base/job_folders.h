#pragma once

#include <string>

#include "common/base/status.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/base/setup.h"

namespace sft::worker {

// Checks that a job may read a path (all links resolved): not below another job's folder, unless
// the server names that job (Dispatch.folders), and not among the worker's private files. Otherwise
// NOT_FOUND, as if it did not exist; `name` is what the job calls it.
absl::Status CheckJobFolders(const std::string& real, const std::string& name,
                             const v1::Dispatch& dispatch, const NodeSetup& setup);
// The same check for a file that the server fetches for a caller, who may read what the path names.
absl::Status CheckFetchFolders(const std::string& real, const v1::FetchFile& request,
                               const NodeSetup& setup);
// The real path of a file or folder that a job names, resolved below the node's roots as by
// io::ResolveBelow.
absl::StatusOr<std::string> ResolveForJob(const std::string& path, const v1::Dispatch& dispatch,
                                          const NodeSetup& setup);

}  // namespace sft::worker
