#pragma once

#include "sft/v1/node.pb.h"
#include "worker/base/setup.h"

namespace sft::worker {

// Measures the disk that holds the node's data folder; level 0 when that fails.
v1::NodeDisk MeasureDisk(const NodeSetup& setup);

}  // namespace sft::worker
