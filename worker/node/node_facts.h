#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "sft/v1/node.pb.h"
#include "worker/gpus/gpu_probe.h"

namespace sft::worker {

// Facts about a node besides its slots: the driver, the links between its GPUs, and its adapters
// for fast networks (`networks`, as from ListNetworks).
v1::NodeFacts MakeFacts(const std::vector<GpuReading>& gpus, std::vector<std::string> networks);

// INVALID_ARGUMENT for what is no place in a network: up to 8 names of letters, digits, '-', '_'
// and
// '.', with a '/' between them.
absl::Status CheckPlace(std::string_view place);

// One text per port below `root`, the kernel's list of RDMA devices: "mlx5_0: InfiniBand 400 Gb/sec
// (4X NDR), ACTIVE".
std::vector<std::string> ListNetworks(const std::string& root = "/sys/class/infiniband");

// The machine and disk that hold a folder. `machine_id`: the file with the machine's id; without
// one the host's name is used.
v1::DataDirPlace PlaceOf(const std::string& dir, const std::string& machine_id = "/etc/machine-id");

}  // namespace sft::worker
