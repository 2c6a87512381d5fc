#pragma once

#include <string>
#include <vector>

#include "sft/v1/node.pb.h"
#include "worker/gpus/gpu_probe.h"

namespace sft::worker {

// What there is on a node besides its slots: the driver, how its GPUs reach each other, and its
// adapters for fast networks (`networks`, as ListNetworks gives them).
v1::NodeFacts MakeFacts(const std::vector<GpuReading>& gpus, std::vector<std::string> networks);

// "mlx5_0: InfiniBand 400 Gb/sec (4X NDR), ACTIVE" for each port below `root`, the kernel's list of
// RDMA devices.
std::vector<std::string> ListNetworks(const std::string& root = "/sys/class/infiniband");

// Where a folder lies. `machine_id`: the file of the machine's id; without one the host's name
// counts.
v1::DataDirPlace PlaceOf(const std::string& dir, const std::string& machine_id = "/etc/machine-id");

}  // namespace sft::worker
