#pragma once

#include <string>

namespace sft::engine::cuda {

// Tells NCCL (NCCL_SOCKET_IFNAME, where unset) to use the interface that `bind` names or whose
// address it is; an address of no interface here leaves the choice to NCCL. Call before the first
// communicator and before other threads read the environment.
void UseInterfaceOf(const std::string& bind);

}  // namespace sft::engine::cuda
