#pragma once

#include <string>
#include <vector>

#include "worker/base/setup.h"

namespace sft::worker {

// The sockets that are there of an attempt's processes that serve (NodeSetup::ServeSockets), also
// those that killed ones have left.
std::vector<std::string> ServeSocketsThere(const NodeSetup& setup, const std::string& uid);

}  // namespace sft::worker
