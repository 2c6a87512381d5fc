#pragma once

#include <memory>

#include "worker/engine/dist/communicator.h"

namespace sft::engine::cuda {

// The "nccl" backend. Collectives run on NCCL's own stream behind what the current stream holds
// when they start; Work::Wait makes the then current stream wait for them and never blocks the
// thread. A collective that outlasts the rendezvous's time-out or loses a peer ends the process:
// NCCL's watchdog thread throws, with the collective's name, and nothing catches it.
//
// Honours NCCL's own environment (NCCL_NVLS_ENABLE, NCCL_IB_*, ...). NCCL_SOCKET_IFNAME, where
// unset, becomes the interface that holds rendezvous.bind().
std::unique_ptr<Communicator> MakeNcclCommunicator(const Rendezvous& rendezvous, at::Device device);

}  // namespace sft::engine::cuda
