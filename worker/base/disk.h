#pragma once

#include "sft/v1/node.pb.h"
#include "worker/base/setup.h"

namespace sft::worker {

// How full the disk with the node's data folder is; level 0 when it cannot be asked.
v1::NodeDisk MeasureDisk(const NodeSetup& setup);

}  // namespace sft::worker
