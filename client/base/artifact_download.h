#pragma once

#include <string>

#include "client/base/connection.h"
#include "sft/v1/data_service.pb.h"

namespace sft::client {

// ALREADY_EXISTS unless `folder` is not there or empty.
absl::Status CheckNewFolder(const std::string& folder);

// Downloads what a job has delivered into a new folder, which appears when it is complete; the same
// call continues a broken download.
absl::Status DownloadArtifact(Connection& connection, const v1::Artifact& artifact,
                              const std::string& folder);

}  // namespace sft::client
