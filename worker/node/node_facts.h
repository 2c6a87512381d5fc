#pragma once

#include <string>
#include <vector>

#include "sft/v1/node.pb.h"
#include "worker/gpus/gpu_probe.h"

namespace sft::worker {

// Facts about a node besides its slots: the driver, the links between its GPUs, and its adapters
// for fast networks (`networks`, as from ListNetworks).
v1::NodeFacts MakeFacts(const std::vector<GpuReading>& gpus, std::vector<std::string> networks);

// One text per port below `root`, the kernel's list of RDMA devices: "mlx5_0: InfiniBand 400 Gb/sec
// (4X NDR), ACTIVE".
std::vector<std::string> ListNetworks(const std::string& root = "/sys/class/infiniband");

// The machine and disk that hold a folder. `machine_id`: the file with the machine's id; without
// one the host's name is used.
v1::DataDirPlace PlaceOf(const std::string& dir, const std::string& machine_id = "/etc/machine-id");

}  // namespace sft::worker
