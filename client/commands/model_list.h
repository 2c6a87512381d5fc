#pragma once

#include <vector>

#include "client/base/connection.h"
#include "sft/v1/cluster_service.pb.h"

namespace sft::client {

// All models that nodes see, and those on their way: all pages of ListModels.
absl::StatusOr<std::vector<v1::NodeModel>> AllModels(Connection& connection);

}  // namespace sft::client
