#pragma once

#include <string>
#include <vector>

#include "client/base/connection.h"
#include "client/output/json.h"

namespace sft::client {

// A small file of JSON that a job delivered. DATA_LOSS where it is none.
absl::StatusOr<Json> ReadArtifactJson(Connection& connection, const std::string& job,
                                      const std::string& path);

// The lines of such a file, each an object; at most 256 MiB of them.
absl::StatusOr<std::vector<Json>> ReadArtifactLines(Connection& connection, const std::string& job,
                                                    const std::string& path);

}  // namespace sft::client
